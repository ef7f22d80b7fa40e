#include "checkpoint/writer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
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
  Json part = {{"file", piece.file}, {"slice", slice}, {"checksum", hex(checksum(bytes))}};
  if (!piece.key.empty()) part["key"] = piece.key;
  return {{"name", piece.parameter},
          {"state", piece.state},
          {"kind", piece.kind},
          {"shape", piece.full},
          {"dtype", name_of(tensor::from_torch(piece.data.scalar_type()))},
          {"part", part}};
}

Json entry_of(const Json& told) {
  return {{"shape", told["shape"]}, {"dtype", told["dtype"]}, {"slices", Json::array()}};
}

// Adds a slice to an entry; ranks must agree on what the whole is.
void add_slice(Json& entry, const Json& told) {
  if (entry["shape"] != told["shape"] || entry["dtype"] != told["dtype"])
    fail(ErrorKind::state, "[checkpoint.save] ranks disagree on shape or dtype of '{}'",
         told["name"].get<std::string>());
  for (const Json& other : entry["slices"])
    if (other["slice"] == told["part"]["slice"])
      fail(ErrorKind::state, "[checkpoint.save] the tensor '{}' stands twice in the list",
           told["name"].get<std::string>());
  entry["slices"].push_back(told["part"]);
}

// Returns the entries of the manifest: weights in order, optimizer states under their parameter,
// then the tied names.
Json entries(const Request& request, const std::vector<std::string>& written,
             const std::vector<std::string>& order) {
  std::vector<Json> out;
  std::map<std::string, size_t> at, rank_of;
  std::vector<Json> told;
  for (const std::string& text : written)
    for (Json& piece : Json::parse(text)) told.push_back(std::move(piece));
  for (const Json& piece : told) {
    if (piece["state"] != "") continue;
    const auto name = piece["name"].get<std::string>();
    const auto [it, fresh] = at.emplace(name, out.size());
    if (fresh) {
      Json entry = {{"name", name}, {"kind", piece["kind"]}};
      entry.update(entry_of(piece));
      out.push_back(std::move(entry));
    }
    add_slice(out[it->second], piece);
  }
  for (const Json& piece : told) {
    if (piece["state"] == "") continue;
    const auto name = piece["name"].get<std::string>();
    const auto it = at.find(name);
    if (it == at.end())
      fail(ErrorKind::state,
           "[checkpoint.save] the state '{}' is of '{}', which is not a saved tensor",
           piece["state"].get<std::string>(), name);
    Json& state = out[it->second]["optimizer"][piece["state"].get<std::string>()];
    if (state.is_null()) state = entry_of(piece);
    add_slice(state, piece);
  }
  for (size_t i = 0; i < order.size(); ++i) rank_of.emplace(order[i], i);
  std::stable_sort(out.begin(), out.end(), [&](const Json& a, const Json& b) {
    const auto place = [&](const Json& entry) {
      const auto it = rank_of.find(entry["name"].get<std::string>());
      return it == rank_of.end() ? order.size() : it->second;
    };
    return place(a) < place(b);
  });
  for (const auto& [alias, name] : request.aliases) {
    if (at.count(name) == 0)
      fail(ErrorKind::state, "[checkpoint.save] '{}' is tied to '{}', which is not a saved tensor",
           alias, name);
    out.push_back({{"name", alias}, {"alias", name}});
  }
  return out;
}

// Whether some tensor stands in several slices.
bool is_sliced(const Json& tensors) {
  for (const Json& entry : tensors) {
    if (entry.contains("alias")) continue;
    if (entry["slices"].size() != 1) return true;
    if (!entry.contains("optimizer")) continue;
    for (const Json& state : entry["optimizer"])
      if (state["slices"].size() != 1) return true;
  }
  return false;
}

// Dense and on the CPU.
void settle(std::vector<Piece>& pieces) {
  for (Piece& piece : pieces)
    piece.data = piece.data.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace

std::string key_of(const Piece& piece) {
  if (!piece.key.empty()) return piece.key;
  return piece.state.empty() ? piece.parameter : piece.parameter + "/" + piece.state;
}

std::string write_pieces(const std::string& folder, std::vector<Piece> pieces,
                         const std::atomic<bool>* stop) {
  settle(pieces);
  std::map<std::string, std::vector<safetensors::Item>> files;
  auto told = Json::array();
  for (const Piece& piece : pieces) {
    files[piece.file].push_back(
        {key_of(piece), tensor::type_of(piece.data), piece.data.const_data_ptr()});
    told.push_back(describe(piece));
  }
  for (const auto& [file, items] : files)
    safetensors::write(folder + "/" + file, items, {{"format", "pt"}}, "checkpoint.save", stop);
  return told.dump();
}

std::string finish(Draft& draft, const Request& request, const std::vector<std::string>& written,
                   const std::vector<std::string>& order) {
  draft.write("trainer.json", request.state);
  const Json tensors = entries(request, written, order);
  const Json manifest = {
      {"format", "nnscaler checkpoint"},
      {"version", is_sliced(tensors) ? kFormatVersion : 1},
      {"epoch", request.epoch},
      {"step", request.step},
      {"trainer", {{"file", "trainer.json"}, {"checksum", hex(checksum(request.state))}}},
      {"tensors", tensors}};
  draft.write(kManifest, manifest.dump(1) + "\n");
  const std::string path = draft.commit();
  const std::string name = folder_name(request.epoch, request.step);
  for (const std::string& pointer : request.pointers)
    point(request.save_dir, pointer, name, request.copy_pointers);
  if (request.keep > 0) prune(request.save_dir, request.keep);
  return path;
}

std::string write(const Request& request) {
  Draft draft(request.save_dir, folder_name(request.epoch, request.step));
  return finish(draft, request, {write_pieces(draft.folder(), request.pieces)}, {});
}

void Copies::add(const at::Tensor& from, const at::Tensor& to) {
  constexpr size_t kPart = 1 << 20;
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  for (size_t at = 0; at < from.nbytes(); at += kPart)
    parts_.push_back({source + at, target + at, std::min(kPart, from.nbytes() - at)});
  tensors_.insert(tensors_.end(), {from, to});
}

void Copies::run() {
  for (size_t i = begun_++; i < parts_.size(); i = begun_++) {
    std::memcpy(parts_[i].to, parts_[i].from, parts_[i].bytes);
    if (++done_ == parts_.size()) done_.notify_all();
  }
  for (size_t done = done_; done < parts_.size(); done = done_) done_.wait(done);
}

at::Tensor& Snapshot::room(size_t piece, const at::Tensor& data) {
  at::Tensor& copy = held_[piece];
  if (copy.defined() && (copy.sizes() != data.sizes() || copy.dtype() != data.dtype()))
    copy.reset();
  if (!copy.defined())
    copy = at::empty(data.sizes(), at::TensorOptions().dtype(data.scalar_type()));
  return copy;
}

void Snapshot::reserve(const std::vector<Piece>& pieces) {
  held_.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) room(i, pieces[i].data);
  touching_ = std::make_unique<Task>([held = held_](const std::atomic<bool>& stop) {
    constexpr size_t kPage = 4096;
    for (const at::Tensor& copy : held) {
      auto* bytes = static_cast<volatile char*>(copy.mutable_data_ptr());
      for (size_t at = 0; at < copy.nbytes() && !stop; at += kPage) bytes[at] = 0;
    }
    return std::string();
  });
}

std::pair<std::vector<Piece>, std::shared_ptr<Copies>> Snapshot::take(std::vector<Piece> pieces) {
  touching_.reset();
  held_.resize(pieces.size());
  copies_ = std::make_shared<Copies>();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor data = pieces[i].data.detach();
    at::Tensor& copy = room(i, data);
    const bool plain = data.is_cpu() && data.is_contiguous() && !data.is_conj() && !data.is_neg();
    if (plain && pieces[i].kind != "buffer")
      copies_->add(data, copy);
    else
      copy.copy_(data);
    pieces[i].data = copy;
  }
  return {std::move(pieces), copies_};
}

void Snapshot::settle() {
  if (copies_) std::exchange(copies_, nullptr)->run();
}

}  // namespace nns::checkpoint
