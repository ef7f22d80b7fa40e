#include "operators/room.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/processor.h"

namespace nns::operators {
namespace {

// Parts of equal size, in which a tensor of length `whole` along a dimension is joined or cut.
struct Pieces {
  Pieces(const CallView& call, std::string_view of, int64_t dim, int64_t whole)
      : ranks(static_cast<int64_t>(call.ints("group").size())), plain(dim == 0) {
    const TensorType& x = call.tensor(of);
    const int64_t own = x.shape.at(static_cast<size_t>(dim));
    const int64_t longest = (whole + ranks - 1) / std::max<int64_t>(1, ranks);
    plain = plain && whole % std::max<int64_t>(1, ranks) == 0;
    piece = own == 0 ? 0 : bytes_of(x) / own * longest;
  }
  int64_t ranks, piece = 0;
  bool plain;  // lies as it is sent
  int64_t all() const { return ranks * piece; }
};
int64_t gather_workspace(const CallView& call) {
  const Pieces p(call, "self", call.integer("dim"), call.integer("whole"));
  return p.plain ? 0 : p.all();
}
int64_t scatter_workspace(const CallView& call) {
  const int64_t dim = call.integer("dim");
  const Pieces p(call, "self", dim, call.shape("self").at(static_cast<size_t>(dim)));
  return p.plain ? p.all() : 2 * p.all();
}
// Packed by rank, and what comes from the others.
int64_t scatters_workspace(const CallView& call) {
  const auto ranks = static_cast<int64_t>(call.ints("group").size());
  const std::vector<int64_t> dims = call.ints("dims");
  int64_t bytes = 0;
  const auto list = call.tensors("self");
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t own = list[i]->shape.at(static_cast<size_t>(dims.at(i)));
    const int64_t longest = (own + ranks - 1) / std::max<int64_t>(1, ranks);
    const int64_t row = own == 0 ? 0 : bytes_of(*list[i]) / own;
    bytes += 2 * ranks * longest * row + (own % ranks == 0 ? 0 : longest * row);
  }
  return bytes;
}
int64_t exchange_workspace(const CallView& call) {
  return 2 * bytes_of(call.tensor("self"));
}

// Attention's results lie as [batch, length, heads, width], so that joining the heads copies
// nothing; gradients of equally long operands side by side in one memory.
std::vector<Laid> by_length(const CallView& call, std::initializer_list<const char*> names,
                            bool beside) {
  std::vector<const TensorType*> types;
  for (const char* name : names) types.push_back(&call.tensor(name));
  const auto parts = static_cast<int64_t>(types.size());
  const bool one = beside && std::all_of(types.begin(), types.end(),
                                         [&](const TensorType* t) { return *t == *types[0]; });
  std::vector<Laid> out;
  for (const TensorType* type : types) {
    const Shape& s = type->shape;
    if (s.size() != 4) return {};
    const int64_t own = s[1] * s[3], row = one ? parts * own : own;
    Laid laid{{s[2] * row, s[3], row, 1}};
    if (one) {
      laid.offset = static_cast<int64_t>(out.size()) * own;
      laid.elements = s[0] * s[2] * row;
    }
    out.push_back(std::move(laid));
  }
  return out;
}
std::vector<Laid> attention(const CallView& call) {
  const bool spelled = call.find("query") != nullptr;
  return by_length(call, {spelled ? "query" : "q"}, false);
}
std::vector<Laid> attention_backward(const CallView& call) {
  if (call.find("query") != nullptr) return by_length(call, {"query", "key", "value"}, true);
  return by_length(call, {"q", "k", "v"}, true);
}

// Where 16-bit products are those of oneDNN, it packs operands, at most twice, and keeps notes.
int64_t product_workspace(const CallView& call) {
  if (!packs_16_bit_products()) return 0;
  constexpr int64_t kNotes = 2048;
  int64_t bytes = kNotes;
  for (const TensorType* type : call.operands()) {
    if (type->dtype != DType::bf16 && type->dtype != DType::f16) return 0;
    bytes += 2 * bytes_of(*type);
  }
  return bytes;
}

struct Room {
  std::vector<Laid> (*laid)(const CallView&) = nullptr;
  int64_t (*workspace)(const CallView&) = nullptr;
  bool joins = false;
};
const std::map<std::string_view, Room>& rooms() {
  static const std::map<std::string_view, Room> all = {
      {"comm::all_gather", {nullptr, gather_workspace}},
      {"comm::reduce_scatter", {nullptr, scatter_workspace}},
      {"comm::scatter_gradient", {nullptr, scatter_workspace}},
      {"comm::scatter_gradients", {nullptr, scatters_workspace}},
      {"comm::all_to_all", {nullptr, exchange_workspace}},
      {"aten::linear", {nullptr, product_workspace}},
      {"aten::matmul", {nullptr, product_workspace}},
      {"aten::mm", {nullptr, product_workspace}},
      {"aten::bmm", {nullptr, product_workspace}},
      {"nnscaler::linear_input", {nullptr, product_workspace}},
      {"nnscaler::linear_weight", {nullptr, product_workspace}},
      {"nnscaler::join", {nullptr, nullptr, true}},
      {"nnscaler::attention", {attention, nullptr}},
      {"nnscaler::dropped_attention", {attention, nullptr}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {attention, nullptr}},
      {"nnscaler::attention_backward", {attention_backward, nullptr}},
      {"nnscaler::dropped_attention_backward", {attention_backward, nullptr}},
  };
  return all;
}
const Room* room_of(std::string_view op) {
  const auto found = rooms().find(base_of(op));
  return found == rooms().end() ? nullptr : &found->second;
}

}  // namespace

std::vector<Laid> laid(const CallView& call) {
  const Room* room = room_of(call.op());
  return room == nullptr || room->laid == nullptr ? std::vector<Laid>{} : room->laid(call);
}

bool joins(std::string_view op) {
  const Room* room = room_of(op);
  return room != nullptr && room->joins;
}

int64_t workspace(const CallView& call) {
  const Room* room = room_of(call.op());
  return room == nullptr || room->workspace == nullptr ? 0 : room->workspace(call);
}

}  // namespace nns::operators
