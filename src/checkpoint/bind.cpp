// nnscaler._C.checkpoint: safetensors files as tensors, and writing checkpoints.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "checkpoint/checksum.h"
#include "checkpoint/folder.h"
#include "checkpoint/task.h"
#include "checkpoint/writer.h"
#include "script/state.h"
#include "tensor/box.h"
#include "tensor/modules.h"

namespace nns::checkpoint {
namespace {

using script::guarded;
using FilePtr = std::shared_ptr<const safetensors::File>;
constexpr const char* kFileType = "nnscaler.SafetensorsFile";
constexpr const char* kSnapshotType = "nnscaler.CheckpointSnapshot";
constexpr const char* kTaskType = "nnscaler.CheckpointTask";
constexpr const char* kDraftType = "nnscaler.CheckpointDraft";
constexpr const char* kClaimType = "nnscaler.CheckpointClaim";

const safetensors::File& check_file(lua_State* L) {
  return *script::check_object<FilePtr>(L, 1, kFileType);
}

std::vector<safetensors::Range> check_slice(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  std::vector<safetensors::Range> out(lua_objlen(L, index));
  for (size_t i = 0; i < out.size(); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i + 1));
    const auto pair = script::check_ints(L, lua_gettop(L));
    if (pair.size() != 2)
      fail(ErrorKind::state, "[checkpoint.slice] range {} has {} numbers; expected start and stop",
           i, pair.size());
    out[i] = {pair[0], pair[1]};
    lua_pop(L, 1);
  }
  return out;
}

std::vector<safetensors::Range> whole(const Shape& shape) {
  std::vector<safetensors::Range> out;
  for (const int64_t n : shape) out.push_back({0, n});
  return out;
}

// --- reading
// ----------------------------------------------------------------------------------------

int read_safetensors(lua_State* L) {  // (path) → file
  script::push_object<FilePtr>(L, kFileType, safetensors::File::open(script::check_string(L, 1)));
  return 1;
}
int file_names(lua_State* L) {  // → names in the order of the data
  const auto& entries = check_file(L).entries();
  lua_createtable(L, static_cast<int>(entries.size()), 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    script::push_string(L, entries[i].name);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int file_info(lua_State* L) {  // (name) → { dtype, shape, bytes }, or nil
  const auto* entry = check_file(L).find(script::check_string(L, 2));
  if (entry == nullptr) return 0;
  lua_createtable(L, 0, 3);
  script::push_string(L, name_of(entry->type.dtype));
  lua_setfield(L, -2, "dtype");
  script::push_ints(L, entry->type.shape);
  lua_setfield(L, -2, "shape");
  lua_pushnumber(L, static_cast<double>(entry->end - entry->begin));
  lua_setfield(L, -2, "bytes");
  return 1;
}
int file_metadata(lua_State* L) {  // → table of strings
  lua_newtable(L);
  for (const auto& [key, value] : check_file(L).metadata()) {
    script::push_string(L, key);
    script::push_string(L, value);
    lua_rawset(L, -3);
  }
  return 1;
}
int file_checksum(lua_State* L) {  // (name) → 16 hexadecimal digits
  const auto& file = check_file(L);
  const auto& entry = file.at(script::check_string(L, 2));
  script::push_string(L, hex(checksum(file.bytes(entry))));
  file.forget(entry);
  return 1;
}

at::Tensor read(const safetensors::File& file, const std::string& name,
                const std::vector<safetensors::Range>* slice) {
  const auto& entry = file.at(name);
  const auto ranges = slice != nullptr ? *slice : whole(entry.type.shape);
  Shape shape;
  for (const auto& [start, stop] : ranges) shape.push_back(std::max<int64_t>(stop - start, 0));
  at::Tensor out = at::empty(shape, tensor::to_torch(entry.type.dtype));
  auto* bytes = static_cast<char*>(out.mutable_data_ptr());
  file.copy(entry, ranges, bytes);
  if (entry.type.dtype == DType::boolean)
    for (size_t i = 0; i < out.nbytes(); ++i)
      if (static_cast<unsigned char>(bytes[i]) > 1)
        fail(ErrorKind::state, "[checkpoint.read] tensor '{}' of '{}' holds {} as a truth value",
             name, file.path(), static_cast<unsigned char>(bytes[i]));
  return out;
}

int file_read(lua_State* L) {  // (name [, list of { start, stop }]) → tensor
  const auto& file = check_file(L);
  const std::string name = script::check_string(L, 2);
  if (lua_isnoneornil(L, 3)) {
    tensor::push(L, read(file, name, nullptr));
  } else {
    const auto slice = check_slice(L, 3);
    tensor::push(L, read(file, name, &slice));
  }
  return 1;
}
int file_copy_to(lua_State* L) {  // (name, tensor): overwrites a tensor of that shape and dtype
  const auto& file = check_file(L);
  const std::string name = script::check_string(L, 2);
  at::Tensor target = tensor::check_real(L, 3).detach();
  const auto& entry = file.at(name);
  if (tensor::type_of(target) != entry.type)
    fail(ErrorKind::state, "[checkpoint.read] tensor '{}' of '{}' is {}; expected {}", name,
         file.path(), to_string(entry.type), to_string(tensor::type_of(target)));
  if (target.is_cpu() && target.is_contiguous() && entry.type.dtype != DType::boolean)
    file.copy(entry, whole(entry.type.shape), static_cast<char*>(target.mutable_data_ptr()));
  else
    target.copy_(read(file, name, nullptr));
  return 0;
}

// --- writing
// ----------------------------------------------------------------------------------------

int write_safetensors(lua_State* L) {  // (path, list of { name, tensor } [, metadata])
  std::vector<safetensors::Item> items;
  std::vector<at::Tensor> dense;
  luaL_checktype(L, 2, LUA_TTABLE);
  for (size_t i = 1; i <= lua_objlen(L, 2); ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i));
    luaL_checktype(L, -1, LUA_TTABLE);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    dense.push_back(
        tensor::check_real(L, lua_gettop(L)).detach().cpu().resolve_conj().contiguous());
    items.push_back({script::check_string(L, lua_gettop(L) - 1), tensor::type_of(dense.back()),
                     dense.back().const_data_ptr()});
    lua_pop(L, 3);
  }
  std::map<std::string, std::string> metadata;
  if (!lua_isnoneornil(L, 3)) {
    luaL_checktype(L, 3, LUA_TTABLE);
    for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
      if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
        fail(ErrorKind::state, "[checkpoint.write] metadata maps strings to strings");
      metadata[script::check_string(L, lua_gettop(L) - 1)] = script::check_string(L, lua_gettop(L));
    }
  }
  const std::string path = script::check_string(L, 1);
  const std::string temporary = path + ".writing";
  safetensors::write(temporary, std::move(items), metadata);
  std::error_code ec;
  std::filesystem::rename(temporary, path, ec);
  if (ec) fail(ErrorKind::state, "[checkpoint.write] cannot write '{}': {}", path, ec.message());
  return 0;
}

Piece check_piece(lua_State* L, int index) {
  Piece piece;
  piece.file = script::field_string(L, index, "file", "");
  piece.parameter = script::field_string(L, index, "parameter", "");
  piece.state = script::field_string(L, index, "state", "");
  piece.key = script::field_string(L, index, "key", "");
  piece.kind = script::field_string(L, index, "kind", "parameter");
  lua_getfield(L, index, "data");
  piece.data = tensor::check_real(L, lua_gettop(L));
  lua_getfield(L, index, "shape");
  piece.full =
      lua_isnil(L, -1) ? tensor::type_of(piece.data).shape : script::check_ints(L, lua_gettop(L));
  lua_getfield(L, index, "slice");
  piece.slice = lua_isnil(L, -1) ? whole(piece.full) : check_slice(L, lua_gettop(L));
  lua_pop(L, 3);
  return piece;
}

std::vector<std::string> string_list(lua_State* L, int index, const char* key) {
  std::vector<std::string> out;
  lua_getfield(L, index, key);
  if (lua_istable(L, -1))
    for (size_t i = 1; i <= lua_objlen(L, -1); ++i) {
      lua_rawgeti(L, -1, static_cast<int>(i));
      out.push_back(script::check_string(L, lua_gettop(L)));
      lua_pop(L, 1);
    }
  lua_pop(L, 1);
  return out;
}

std::vector<Piece> check_pieces(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  std::vector<Piece> pieces;
  for (size_t i = 1; i <= lua_objlen(L, index); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    pieces.push_back(check_piece(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  return pieces;
}

// All but the pieces.
Request check_request(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  Request request;
  request.save_dir = script::field_string(L, index, "save_dir", "");
  request.epoch = script::field_int(L, index, "epoch", 0);
  request.step = script::field_int(L, index, "step", 0);
  request.state = script::field_string(L, index, "state", "{}");
  request.keep = script::field_int(L, index, "keep", 0);
  request.pointers = string_list(L, index, "pointers");
  request.copy_pointers = script::field_boolean(L, index, "copy_pointers", false);
  const auto tied = string_list(L, index, "aliases");  // alias, name, alias, name, …
  for (size_t i = 0; i + 1 < tied.size(); i += 2)
    request.aliases.emplace_back(tied[i], tied[i + 1]);
  return request;
}

int save(lua_State* L) {  // (request) → path
  Request request = check_request(L, 1);
  lua_getfield(L, 1, "pieces");
  request.pieces = check_pieces(L, lua_gettop(L));
  script::push_string(L, write(request));
  return 1;
}

// --- of several ranks

using DraftPtr = std::shared_ptr<Draft>;

DraftPtr& check_draft(lua_State* L) {
  auto& draft = script::check_object<DraftPtr>(L, 1, kDraftType);
  if (!draft) fail(ErrorKind::internal, "[checkpoint.save] the draft is finished or dropped");
  return draft;
}
int draft(lua_State* L) {  // (save_dir, epoch, step) → a folder that ranks write their files into
  script::push_object<DraftPtr>(
      L, kDraftType,
      std::make_shared<Draft>(script::check_string(L, 1),
                              folder_name(luaL_checkinteger(L, 2), luaL_checkinteger(L, 3))));
  return 1;
}
int draft_folder(lua_State* L) {
  script::push_string(L, check_draft(L)->folder());
  return 1;
}
int draft_drop(lua_State* L) {
  script::check_object<DraftPtr>(L, 1, kDraftType).reset();
  return 0;
}
int write_pieces_of(lua_State* L) {  // (folder, pieces) → JSON of what was written
  script::push_string(L, write_pieces(script::check_string(L, 1), check_pieces(L, 2)));
  return 1;
}

// --- beside the program

int push_task(lua_State* L, Task::Work work) {
  script::push_object<std::unique_ptr<Task>>(L, kTaskType, std::make_unique<Task>(std::move(work)));
  return 1;
}
Task& check_task(lua_State* L) {
  return *script::check_object<std::unique_ptr<Task>>(L, 1, kTaskType);
}
int task_done(lua_State* L) {
  lua_pushboolean(L, check_task(L).done() ? 1 : 0);
  return 1;
}
int task_result(lua_State* L) {
  script::push_string(L, check_task(L).result());
  return 1;
}
int snapshot(lua_State* L) {
  script::push_object<std::unique_ptr<Snapshot>>(L, kSnapshotType, std::make_unique<Snapshot>());
  return 1;
}
int snapshot_reserve(lua_State* L) {  // (pieces)
  script::check_object<std::unique_ptr<Snapshot>>(L, 1, kSnapshotType)->reserve(check_pieces(L, 2));
  return 0;
}
int snapshot_write(lua_State* L) {  // (folder, pieces) → task whose result is that of write_pieces
  auto& snapshot = *script::check_object<std::unique_ptr<Snapshot>>(L, 1, kSnapshotType);
  auto [pieces, copies] = snapshot.take(check_pieces(L, 3));
  return push_task(L, [folder = script::check_string(L, 2), pieces = std::move(pieces),
                       copies = std::move(copies)](const std::atomic<bool>& stop) {
    // Training waits for the copies at its next update, and for nothing behind them.
    copies->run();
    Task::let_others_first();
    return write_pieces(folder, pieces, &stop);
  });
}
int snapshot_settle(lua_State* L) {
  script::check_object<std::unique_ptr<Snapshot>>(L, 1, kSnapshotType)->settle();
  return 0;
}
int draft_finish(lua_State* L) {  // (request with `written` and `order`) → task with the path
  auto& draft = check_draft(L);
  return push_task(L, [draft = std::exchange(draft, nullptr), request = check_request(L, 2),
                       written = string_list(L, 2, "written"),
                       order = string_list(L, 2, "order")](const std::atomic<bool>&) {
    Task::let_others_first();
    return finish(*draft, request, written, order);
  });
}

// --- folders
// ----------------------------------------------------------------------------------------

// Tells a checkpoint from another of the same name that was there before, or comes after.
std::string identity(const std::string& manifest) {
  struct stat found{};
  if (::stat(manifest.c_str(), &found) != 0) return "";
  return fmt::format("{} {}.{:09d}", found.st_ino, found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
}
int whole_list(lua_State* L) {  // (save_dir) → list of { name, epoch, step, id }, oldest first
  const std::string save_dir = script::check_string(L, 1);
  const auto saved = whole_checkpoints(save_dir);
  lua_createtable(L, static_cast<int>(saved.size()), 0);
  for (size_t i = 0; i < saved.size(); ++i) {
    lua_createtable(L, 0, 4);
    script::push_string(L, saved[i].name);
    lua_setfield(L, -2, "name");
    script::push_string(L, identity(save_dir + "/" + saved[i].name + "/" + kManifest));
    lua_setfield(L, -2, "id");
    lua_pushnumber(L, static_cast<double>(saved[i].epoch));
    lua_setfield(L, -2, "epoch");
    lua_pushnumber(L, static_cast<double>(saved[i].step));
    lua_setfield(L, -2, "step");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int claim(lua_State* L) {  // (save_dir) → an object that keeps other runs out until `release`
  script::push_object<std::unique_ptr<Claim>>(L, kClaimType,
                                              std::make_unique<Claim>(script::check_string(L, 1)));
  return 1;
}
int claim_release(lua_State* L) {
  script::check_object<std::unique_ptr<Claim>>(L, 1, kClaimType).reset();
  return 0;
}
int real_path(lua_State* L) {  // (path) → path without links, or nil
  std::error_code ec;
  const auto path = std::filesystem::canonical(script::check_string(L, 1), ec);
  if (ec) return 0;
  script::push_string(L, path.string());
  return 1;
}
int point_to(lua_State* L) {  // (save_dir, pointer, name)
  point(script::check_string(L, 1), script::check_string(L, 2), script::check_string(L, 3));
  return 0;
}
int text_checksum(lua_State* L) {  // (text) → 16 hexadecimal digits
  script::push_string(L, hex(checksum(script::check_string(L, 1))));
  return 1;
}

int open_module(lua_State* L) {
  script::make_type<FilePtr>(L, kFileType,
                             {{"names", guarded<file_names>},
                              {"info", guarded<file_info>},
                              {"metadata", guarded<file_metadata>},
                              {"checksum", guarded<file_checksum>},
                              {"read", guarded<file_read>},
                              {"copy_to", guarded<file_copy_to>}});
  script::make_type<std::unique_ptr<Snapshot>>(L, kSnapshotType,
                                               {{"reserve", guarded<snapshot_reserve>},
                                                {"write", guarded<snapshot_write>},
                                                {"settle", guarded<snapshot_settle>}});
  script::make_type<std::unique_ptr<Task>>(
      L, kTaskType, {{"done", guarded<task_done>}, {"result", guarded<task_result>}});
  script::make_type<DraftPtr>(L, kDraftType,
                              {{"folder", guarded<draft_folder>},
                               {"finish", guarded<draft_finish>},
                               {"drop", guarded<draft_drop>}});
  script::make_type<std::unique_ptr<Claim>>(L, kClaimType, {{"release", guarded<claim_release>}});
  lua_createtable(L, 0, 11);
  script::set_functions(L, {{"read_safetensors", guarded<read_safetensors>},
                            {"write_safetensors", guarded<write_safetensors>},
                            {"save", guarded<save>},
                            {"snapshot", guarded<snapshot>},
                            {"draft", guarded<draft>},
                            {"write_pieces", guarded<write_pieces_of>},
                            {"list", guarded<whole_list>},
                            {"claim", guarded<claim>},
                            {"real_path", guarded<real_path>},
                            {"point", guarded<point_to>},
                            {"checksum", guarded<text_checksum>}});
  lua_pushnumber(L, kFormatVersion);
  lua_setfield(L, -2, "version");
  return 1;
}

}  // namespace

void open(lua_State* L) {
  script::preload(L, "nnscaler._C.checkpoint", guarded<open_module>);
}

}  // namespace nns::checkpoint
