// nnscaler._C.data: token sequences, characters and prefetched windows for Lua.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "data/prefetch.h"
#include "data/windows.h"
#include "ops/philox.h"
#include "script/state.h"
#include "tensor/box.h"
#include "tensor/modules.h"

namespace nns::data {
namespace {

using script::guarded;
constexpr const char* kTokensType = "nnscaler.Tokens";
constexpr const char* kCharactersType = "nnscaler.Characters";
constexpr const char* kWindowsType = "nnscaler.Windows";

using TokensPtr = std::shared_ptr<const Tokens>;
using CharactersPtr = std::shared_ptr<const Characters>;

const TokensPtr& check_tokens(lua_State* L, int index) {
  return script::check_object<TokensPtr>(L, index, kTokensType);
}
const Characters& check_characters(lua_State* L, int index) {
  return *script::check_object<CharactersPtr>(L, index, kCharactersType);
}

// Gives the numbers to LibTorch without copying them.
at::Tensor to_tensor(std::vector<int64_t> values, at::IntArrayRef shape) {
  auto* owner = new std::vector<int64_t>(std::move(values));
  if (owner->empty()) owner->reserve(1);
  return at::from_blob(owner->data(), shape, [owner](void*) { delete owner; }, at::kLong);
}

std::vector<std::string> check_strings(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  std::vector<std::string> out(lua_objlen(L, index));
  for (size_t i = 0; i < out.size(); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i + 1));
    out[i] = script::check_string(L, -1);
    lua_pop(L, 1);
  }
  return out;
}

// --- token sequences
// --------------------------------------------------------------------------------

int text(lua_State* L) {  // (path) → tokens, characters
  const std::string path = script::check_string(L, 1);
  const MappedFile file(path, "data.characters");
  if (file.bytes().empty())
    fail(ErrorKind::data, "[data.characters] '{}' is empty; expected text", path);
  auto characters = std::make_shared<const Characters>(Characters::of(file.bytes(), path));
  auto ids = characters->encode(file.bytes(), path);
  script::push_object<TokensPtr>(L, kTokensType,
                                 std::make_shared<const Tokens>(path, std::move(ids)));
  script::push_object<CharactersPtr>(L, kCharactersType, std::move(characters));
  return 2;
}
int token_file(lua_State* L) {  // (path) → tokens
  auto tokens = std::make_shared<const Tokens>(Tokens::open_file(script::check_string(L, 1)));
  script::push_object<TokensPtr>(L, kTokensType, std::move(tokens));
  return 1;
}
int token_files(lua_State* L) {  // (name for messages, list of paths) → tokens, all as one
  auto tokens = std::make_shared<const Tokens>(
      Tokens::open_files(script::check_string(L, 1), check_strings(L, 2)));
  script::push_object<TokensPtr>(L, kTokensType, std::move(tokens));
  return 1;
}
int tokens_size(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_tokens(L, 1)->size()));
  return 1;
}
int tokens_largest(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_tokens(L, 1)->largest()));
  return 1;
}
int tokens_read(lua_State* L) {  // (begin, count) → int64 tensor
  const TokensPtr& tokens = check_tokens(L, 1);
  const int64_t begin = script::check_int(L, 2), count = script::check_int(L, 3);
  if (begin < 0 || count < 0 || count > tokens->size() - begin)
    fail(ErrorKind::data, "[data.tokens] tokens {} to {} of '{}'; it has {}", begin,
         begin + count - 1, tokens->path(), tokens->size());
  std::vector<int64_t> values(static_cast<size_t>(count));
  tokens->copy(begin, count, values.data());
  tensor::push(L, to_tensor(std::move(values), {count}));
  return 1;
}

// --- characters
// -------------------------------------------------------------------------------------

int characters(lua_State* L) {  // (list) → characters
  script::push_object<CharactersPtr>(L, kCharactersType,
                                     std::make_shared<const Characters>(check_strings(L, 1)));
  return 1;
}
int characters_size(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_characters(L, 1).size()));
  return 1;
}
int characters_list(lua_State* L) {
  const auto list = check_characters(L, 1).list();
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    script::push_string(L, list[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int characters_encode(lua_State* L) {  // (text [, name]) → list of ids
  const std::string given = script::check_string(L, 2);
  const auto ids = check_characters(L, 1).encode(given, script::opt_string(L, 3, "text"));
  script::push_ints(L, {ids.begin(), ids.end()});
  return 1;
}
int characters_decode(lua_State* L) {  // (list of ids) → text
  script::push_string(L, check_characters(L, 1).decode(script::check_ints(L, 2)));
  return 1;
}

// --- windows
// ----------------------------------------------------------------------------------------

struct Loader {
  std::shared_ptr<const Windows> windows;
  std::unique_ptr<Prefetcher<Batch>> ahead;  // null when not prefetched
};

int windows(lua_State* L) {  // (tokens, options) → windows
  using script::field_int;
  WindowsOptions o;
  o.begin = field_int(L, 2, "begin", 0);
  o.stop = field_int(L, 2, "stop", check_tokens(L, 1)->size());
  o.block = field_int(L, 2, "block", 0);
  o.batch = field_int(L, 2, "batch", 0);
  o.drop_last = script::field_boolean(L, 2, "drop_last", true);
  o.seed = static_cast<uint64_t>(field_int(L, 2, "seed", 0));
  o.vocab = field_int(L, 2, "vocab", 0);
  const std::string order = script::field_string(L, 2, "order", "random");
  if (order == "random")
    o.order = WindowsOptions::Order::random;
  else if (order == "epoch")
    o.order = WindowsOptions::Order::epoch;
  else if (order == "pass")
    o.order = WindowsOptions::Order::pass;
  else
    fail(ErrorKind::usage, "[data.windows] order '{}'; expected random, epoch or pass", order);
  const int64_t stride = field_int(L, 2, "replicas", 1);
  const int64_t depth = field_int(L, 2, "prefetch", 2);
  if (stride < 1 || depth < 0)
    fail(ErrorKind::usage, "[data.windows] replicas {}, prefetch {}; expected ≥ 1 and ≥ 0", stride,
         depth);
  Loader loader{std::make_shared<const Windows>(check_tokens(L, 1), o), nullptr};
  if (depth > 0)
    loader.ahead =
        std::make_unique<Prefetcher<Batch>>([w = loader.windows](int64_t n) { return w->batch(n); },
                                            stride, static_cast<size_t>(depth));
  script::push_object<Loader>(L, kWindowsType, std::move(loader));
  return 1;
}
Loader& check_loader(lua_State* L) {
  return script::check_object<Loader>(L, 1, kWindowsType);
}
int windows_get(lua_State* L) {  // (n) → x, y
  Loader& loader = check_loader(L);
  const int64_t n = script::check_int(L, 2);
  Batch b = loader.ahead ? loader.ahead->get(n) : loader.windows->batch(n);
  tensor::push(L, to_tensor(std::move(b.x), {b.rows, b.block}));
  tensor::push(L, to_tensor(std::move(b.y), {b.rows, b.block}));
  return 2;
}
int windows_starts(lua_State* L) {  // (n) → list
  script::push_ints(L, check_loader(L).windows->starts(script::check_int(L, 2)));
  return 1;
}
int windows_per_epoch(lua_State* L) {  // → integer, or nil when endless
  const int64_t n = check_loader(L).windows->per_epoch();
  if (n == 0) return 0;
  lua_pushnumber(L, static_cast<double>(n));
  return 1;
}

// --- random numbers of data sets
// --------------------------------------------------------------------

ops::Stream stream_of(lua_State* L, uint64_t step) {  // arguments 1, 2: key, seed
  return ops::make_stream(script::check_string(L, 1),
                          static_cast<uint64_t>(script::check_int(L, 2)), step);
}
int permuted(lua_State* L) {  // (key, seed, epoch, index, size) → index
  const int64_t index = script::check_int(L, 4), size = script::check_int(L, 5);
  if (index < 0 || index >= size)
    fail(ErrorKind::data, "[data.sampler] position {} of {}", index, size);
  const auto stream = stream_of(L, static_cast<uint64_t>(script::check_int(L, 3)));
  lua_pushnumber(L, static_cast<double>(ops::permute(stream, static_cast<uint64_t>(index),
                                                     static_cast<uint64_t>(size))));
  return 1;
}
int uniform(lua_State* L) {  // (key, seed, index, count) → float32 tensor in [0, 1)
  const int64_t index = script::check_int(L, 3), count = script::check_int(L, 4);
  const auto stream = stream_of(L, 0);
  at::Tensor out = at::empty({count}, at::kFloat);
  auto* values = out.data_ptr<float>();
  // 24 bits, so that rounding to float cannot give 1.
  for (int64_t i = 0; i < count; ++i)
    values[i] =
        static_cast<float>(ops::word64(stream, static_cast<uint64_t>(index * count + i)) >> 40) *
        0x1p-24f;
  tensor::push(L, std::move(out));
  return 1;
}
int integer(lua_State* L) {  // (key, seed, index, bound) → integer in [0, bound)
  const auto stream = stream_of(L, 0);
  lua_pushnumber(
      L, static_cast<double>(ops::below(stream, static_cast<uint64_t>(script::check_int(L, 3)),
                                        static_cast<uint64_t>(script::check_int(L, 4)))));
  return 1;
}

int open_module(lua_State* L) {
  script::make_type<TokensPtr>(L, kTokensType,
                               {{"size", guarded<tokens_size>},
                                {"largest", guarded<tokens_largest>},
                                {"read", guarded<tokens_read>}});
  script::make_type<CharactersPtr>(L, kCharactersType,
                                   {{"size", guarded<characters_size>},
                                    {"list", guarded<characters_list>},
                                    {"encode", guarded<characters_encode>},
                                    {"decode", guarded<characters_decode>}});
  script::make_type<Loader>(L, kWindowsType,
                            {{"get", guarded<windows_get>},
                             {"starts", guarded<windows_starts>},
                             {"per_epoch", guarded<windows_per_epoch>}});
  lua_createtable(L, 0, 8);
  script::set_functions(L, {{"text", guarded<text>},
                            {"token_file", guarded<token_file>},
                            {"token_files", guarded<token_files>},
                            {"characters", guarded<characters>},
                            {"windows", guarded<windows>},
                            {"permuted", guarded<permuted>},
                            {"uniform", guarded<uniform>},
                            {"integer", guarded<integer>}});
  return 1;
}

}  // namespace

void open(lua_State* L) {
  script::preload(L, "nnscaler._C.data", guarded<open_module>);
}

}  // namespace nns::data
