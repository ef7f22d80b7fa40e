#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstring>

#include "base/error.h"

namespace nns {
namespace {

// Whether a loaded segment of the object holds the address.
bool holds(const dl_phdr_info& object, uintptr_t address) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    const uintptr_t start = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address >= start && address < start + segment.p_memsz)
      return true;
  }
  return false;
}

// The build id among the notes of a segment, or "".
std::string id_in(const char* at, const char* end) {
  const auto padded = [](size_t n) { return (n + 3) / 4 * 4; };
  while (at + sizeof(ElfW(Nhdr)) <= end) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof note);
    const char* name = at + sizeof note;
    const char* bytes = name + padded(note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
      std::string out;
      for (size_t i = 0; i < note.n_descsz; ++i)
        out += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
      return out;
    }
    at = bytes + padded(note.n_descsz);
  }
  return "";
}

int visit(dl_phdr_info* object, size_t, void* out) {
  if (!holds(*object, reinterpret_cast<uintptr_t>(&build_id))) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const char* start = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    const std::string id = id_in(start, start + segment.p_memsz);
    if (!id.empty()) *static_cast<std::string*>(out) = id;
  }
  return 1;
}

}  // namespace

std::string build_id() {
  static const std::string id = [] {
    std::string found;
    dl_iterate_phdr(visit, &found);
    if (found.empty())
      fail(ErrorKind::internal, "[base.build_id] the library was linked without --build-id");
    return found;
  }();
  return id;
}

}  // namespace nns
