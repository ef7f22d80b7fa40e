// YAML through yaml-cpp. Plain scalars are read by our own rules (YAML 1.2 with `1e-3` a number).
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "job/parse.h"

namespace nns::job {
namespace {

Mark mark_of(const YAML::Mark& m, const std::string& file) {
  if (m.is_null()) return {file, 0, 0};
  return {file, m.line + 1, m.column + 1};
}

[[noreturn]] void too_deep(const Mark& mark) {
  fail(ErrorKind::usage, "[job.yaml] {}: nested deeper than {} levels", to_string(mark),
       kMostLevels);
}

// `values` counts those made so far: aliases of aliases multiply.
Value convert(const YAML::Node& node, const std::string& file, int depth, size_t& values) {
  const Mark mark = mark_of(node.Mark(), file);
  if (depth > kMostLevels) too_deep(mark);
  check_count(++values, mark);
  Value out;
  out.mark = mark;
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      break;
    case YAML::NodeType::Scalar:
      // The tag of a quoted scalar is "!", of a plain one "?".
      if (node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str")
        return Value::of_text(node.Scalar(), mark);
      return scalar(node.Scalar(), mark);
    case YAML::NodeType::Sequence:
      out.kind = Value::Kind::list;
      for (const auto& item : node) out.items.push_back(convert(item, file, depth + 1, values));
      break;
    case YAML::NodeType::Map:
      out.kind = Value::Kind::map;
      for (const auto& pair : node) {
        const Mark at = mark_of(pair.first.Mark(), file);
        if (!pair.first.IsScalar())
          fail(ErrorKind::usage, "[job.key] {}: a key is not plain text", to_string(at));
        const std::string key = pair.first.Scalar();
        if (const Value* before = out.find(key))
          fail(ErrorKind::usage, "[job.key] {}: duplicate key '{}', first written at {}",
               to_string(at), key, to_string(before->mark));
        out.fields.push_back({key, convert(pair.second, file, depth + 1, values)});
        out.fields.back().value.mark = at;
      }
      break;
  }
  return out;
}

Value load(const std::string& text, const std::string& file) {
  size_t values = 0;
  try {
    return convert(YAML::Load(text), file, 0, values);
  } catch (const YAML::DeepRecursion& e) {
    too_deep(mark_of(e.mark, file));
  } catch (const YAML::Exception& e) {
    fail(ErrorKind::usage, "[job.yaml] {}: {}", to_string(mark_of(e.mark, file)), e.msg);
  }
}

}  // namespace

Value parse_document(std::string_view text, const std::string& file) {
  return load(std::string(text), file);
}

Value parse_yaml(std::string_view text, const std::string& file) {
  Value root = parse_document(text, file);
  if (root.is(Value::Kind::null)) {
    root.kind = Value::Kind::map;  // an empty file: all keys are missing
    root.mark = {file, 1, 1};
  }
  if (!root.is(Value::Kind::map))
    fail(ErrorKind::usage, "[job.yaml] {}: a job is a table of keys, this is {}",
         to_string(root.mark), describe(root));
  return root;
}

namespace {

void set_marks(Value& value, const Mark& mark) {
  value.mark = mark;
  for (Value& item : value.items) set_marks(item, mark);
  for (Field& f : value.fields) set_marks(f.value, mark);
}

}  // namespace

Value parse_expression(std::string_view text, const Mark& mark) {
  Value out;
  if (!text.empty() && (text[0] == '[' || text[0] == '{' || text[0] == '\'' || text[0] == '"')) {
    out = load(std::string(text), mark.file);
    set_marks(out, mark);
  } else if (text.empty()) {
    out = Value::of_text("", mark);
  } else {
    out = scalar(text, mark);
    out.spelled = true;
  }
  return out;
}

}  // namespace nns::job
