// Casts of weights that run once a step, as a function that puts each beside its weight.
#include <map>

#include "codegen/file.h"

namespace nns::codegen {
namespace {

// The numbered module that a name lies in: "transformer.h.3.fc.weight" → "transformer.h", "3".
struct Instance {
  std::string list, index;
};

Instance instance_of(const std::string& name) {
  for (size_t start = 0, end; (end = name.find('.', start)) != std::string::npos; start = end + 1) {
    const std::string part = name.substr(start, end - start);
    if (start > 0 && part.size() < 10 && (part == "0" || part[0] != '0') &&
        part.find_first_not_of("0123456789") == std::string::npos)
      return {name.substr(0, start - 1), part};
  }
  return {};
}

}  // namespace

std::string FileWriter::casts_text() {
  if (program_.casts.empty()) return "";
  struct Group {  // casts of instances that are alike
    Instance first;
    std::string last;
    std::vector<const Instr*> casts;
    std::vector<std::string> lines;
  };
  const auto lines_of = [&](const std::vector<const Instr*>& casts, const std::string& path) {
    FunctionWriter w(program_, operators_, groups_, path, reserved_);
    if (!path.empty()) w.indent(true);
    for (const Instr* instr : casts) {
      w.store(instr->outs[0], w.expression(instr->outs[0]));
      w.statement(*instr);
    }
    return w.lines();
  };
  std::map<std::string, std::vector<const Instr*>> by_path;  // of instances; "" of none
  std::vector<std::pair<std::string, Instance>> order;
  for (const Instr& instr : program_.casts) {
    const Instance at = instance_of(program_.slot(instr.outs[0]).name);
    const std::string path = at.list.empty() ? "" : at.list + "." + at.index;
    auto& list = by_path[path];
    if (list.empty()) order.emplace_back(path, at);
    list.push_back(&instr);
  }
  std::vector<Group> groups;
  for (const auto& [path, at] : order) {
    const auto& casts = by_path.at(path);
    const auto lines = lines_of(casts, path);
    if (!groups.empty() && !path.empty() && groups.back().first.list == at.list &&
        std::stoll(groups.back().last) + 1 == std::stoll(at.index) && groups.back().lines == lines)
      groups.back().last = at.index;
    else
      groups.push_back({at, at.index, casts, lines});
  }
  std::string out =
      "\n-- Weights in other dtypes, for all micro-batches of a step.\nlocal function casts(p)\n";
  for (const Group& group : groups) {
    const bool loop = group.first.index != group.last;
    if (loop)
      out += fmt::format("  for i = {}, {} do\n    local w = p{}[i]\n", group.first.index,
                         group.last, index_path(group.first.list));
    for (const std::string& line : loop ? group.lines : lines_of(group.casts, ""))
      out += line + "\n";
    if (loop) out += "  end\n";
  }
  return out + "end\n";
}

}  // namespace nns::codegen
