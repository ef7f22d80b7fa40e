#include "checkpoint/writer.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/checksum.h"
#include "checkpoint/folder.h"
#include "tensor/box.h"

namespace nns::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

Json describe(const Piece& piece) {
  auto slice = Json::array();
  for (const auto& [start, stop] : piece.slice) slice.push_back({start, stop});
  const std::string_view bytes(static_cast<const char*>(piece.data.const_data_ptr()),
                               piece.data.nbytes());
  return {{"file", piece.file}, {"slice", slice}, {"checksum", hex(checksum(bytes))}};
}

Json entry_of(const Piece& piece) {
  return {{"shape", piece.full},
          {"dtype", name_of(tensor::from_torch(piece.data.scalar_type()))},
          {"slices", Json::array()}};
}

// Returns the entries of the manifest: weights in the order given, optimizer states under their
// parameter, then the tied names.
Json entries(const Request& request) {
  std::vector<Json> out;
  std::map<std::string, size_t> at;
  for (const Piece& piece : request.pieces) {
    if (!piece.state.empty()) continue;
    if (!at.emplace(piece.parameter, out.size()).second)
      fail(ErrorKind::state, "[checkpoint.save] the tensor '{}' stands twice in the list",
           piece.parameter);
    Json entry = {{"name", piece.parameter}, {"kind", piece.kind}};
    entry.update(entry_of(piece));
    entry["slices"].push_back(describe(piece));
    out.push_back(std::move(entry));
  }
  for (const Piece& piece : request.pieces) {
    if (piece.state.empty()) continue;
    const auto it = at.find(piece.parameter);
    if (it == at.end())
      fail(ErrorKind::state,
           "[checkpoint.save] the state '{}' is of '{}', which is not a saved tensor", piece.state,
           piece.parameter);
    Json& state = out[it->second]["optimizer"][piece.state];
    state = entry_of(piece);
    state["slices"].push_back(describe(piece));
  }
  for (const auto& [alias, name] : request.aliases) {
    if (at.count(name) == 0)
      fail(ErrorKind::state, "[checkpoint.save] '{}' is tied to '{}', which is not a saved tensor",
           alias, name);
    out.push_back({{"name", alias}, {"alias", name}});
  }
  return out;
}

// Dense and on the CPU; a copy of its own if `own`.
void settle(Request& request, bool own) {
  for (Piece& piece : request.pieces) {
    at::Tensor dense = piece.data.detach().cpu().resolve_conj().resolve_neg().contiguous();
    piece.data = own && dense.is_alias_of(piece.data) ? dense.clone() : dense;
  }
}

}  // namespace

std::string key_of(const Piece& piece) {
  return piece.state.empty() ? piece.parameter : piece.parameter + "/" + piece.state;
}

std::string write(const Request& request) {
  const std::string name = folder_name(request.epoch, request.step);
  Draft draft(request.save_dir, name);
  std::map<std::string, std::vector<safetensors::Item>> files;
  for (const Piece& piece : request.pieces)
    files[piece.file].push_back(
        {key_of(piece), tensor::type_of(piece.data), piece.data.const_data_ptr()});
  for (const auto& [file, items] : files)
    safetensors::write(draft.path(file), items, {{"format", "pt"}}, "checkpoint.save");
  draft.write("trainer.json", request.state);
  const Json manifest = {
      {"format", "nnscaler checkpoint"},
      {"version", kFormatVersion},
      {"epoch", request.epoch},
      {"step", request.step},
      {"trainer", {{"file", "trainer.json"}, {"checksum", hex(checksum(request.state))}}},
      {"tensors", entries(request)}};
  draft.write(kManifest, manifest.dump(1) + "\n");
  const std::string path = draft.commit();
  for (const std::string& pointer : request.pointers) point(request.save_dir, pointer, name);
  if (request.keep > 0) prune(request.save_dir, request.keep);
  return path;
}

Writer::~Writer() {
  if (thread_.joinable()) thread_.join();
}

void Writer::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

std::string Writer::save(Request request, bool background) {
  wait();
  settle(request, background);
  if (!background) return write(request);
  const std::string path = request.save_dir + "/" + folder_name(request.epoch, request.step);
  thread_ = std::thread([this, request = std::move(request)] {
    try {
      write(request);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
  return path;
}

}  // namespace nns::checkpoint
