// From the JSON of an exported program to a Program. The one file that includes LibTorch's
// declaration of that JSON, which is large.
// The compiler takes four times as long at -O2.
#pragma GCC optimize("O1")
#include <torch/csrc/utils/generated_serialization_types.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "trace/import/archive.h"
#include "trace/import/functions.h"
#include "trace/import/parts.h"
#include "trace/import/program.h"

namespace nns::trace::import {
namespace {

namespace pt2 = torch::_export;
using graph::Symbol;

constexpr int64_t kMajor = 8;  // of the schema, since PyTorch 2.5
constexpr const char* kModel = "models/model.json";

std::string layout_name(pt2::Layout layout, const Origin& origin) {
  if (layout == pt2::Layout::Strided) return "strided";
  fail(ErrorKind::model,
       "[import.argument] a tensor of layout {} is wanted; expected dense ones; {}",
       pt2::printEnum(layout), describe(origin));
}

std::string format_name(pt2::MemoryFormat format) {
  switch (format) {
    case pt2::MemoryFormat::ChannelsLast:
      return "channels_last";
    case pt2::MemoryFormat::ChannelsLast3d:
      return "channels_last_3d";
    case pt2::MemoryFormat::PreserveFormat:
      return "preserve_format";
    default:
      return "contiguous_format";
  }
}

// "torch.ops.aten.add.Tensor" → "aten::add.Tensor"; other targets keep their name.
std::string operator_name(const std::string& target) {
  constexpr std::string_view kOps = "torch.ops.";
  if (!target.starts_with(kOps) || is_function(target)) return target;
  const std::string rest = target.substr(kOps.size());
  const size_t space = rest.find('.'), overload = rest.rfind('.');
  if (space == std::string::npos || overload == space) return target;
  std::string name = rest.substr(0, space) + "::" + rest.substr(space + 1, overload - space - 1);
  const std::string last = rest.substr(overload + 1);
  return last == "default" ? name : name + "." + last;
}

class BodyReader {
 public:
  explicit BodyReader(const Archive& archive) : archive_(archive) {}

  Body read(const pt2::Graph& graph) {
    graph_ = &graph;
    for (const pt2::Argument& input : graph.get_inputs()) {
      const Result made = define(input);
      if (made.list || made.slots.size() > 1) broken("an input that is a list");
      // Inputs that are plain values have no name.
      body_.inputs.push_back(made.slots.empty() ? -1 : made.slots[0]);
    }
    for (const pt2::Node& node : graph.get_nodes()) body_.steps.push_back(read(node));
    for (const pt2::Argument& output : graph.get_outputs()) body_.outputs.push_back(term(output));
    spell_draws(body_);
    return std::move(body_);
  }

 private:
  [[noreturn]] void broken(std::string_view what) const {
    archive_.refuse(fmt::format("is damaged: {} has {}; {}", op_.empty() ? "its graph" : op_, what,
                                describe(origin_)));
  }

  Step read(const pt2::Node& node) {
    Step step;
    const auto& about = node.get_metadata();
    if (const auto it = about.find("nn_module_stack"); it != about.end())
      step.origin.module = read_module(it->second);
    if (const auto it = about.find("stack_trace"); it != about.end())
      read_place(it->second, step.origin);
    origin_ = step.origin;
    op_ = step.op = operator_name(node.get_target());
    if (!is_plain_name(op_)) broken("a target that is no name");
    for (const pt2::NamedArgument& arg : node.get_inputs())
      step.args.emplace_back(arg.get_name(), term(arg.get_arg()));
    // A region that export has put around calls has no place of its own.
    for (const auto& [name, term] : step.args)
      if (const auto* inner = std::get_if<std::shared_ptr<const Body>>(&term.value))
        if (step.origin.loc.file.empty() && !(*inner)->steps.empty())
          origin_ = step.origin = (*inner)->steps.front().origin;
    check_function(step, body_);
    spell_dtype(node, step);
    for (const pt2::Argument& output : node.get_outputs()) step.results.push_back(define(output));
    return step;
  }

  // What is made of no tensor has the default dtype of the process that exported it, unless told.
  void spell_dtype(const pt2::Node& node, Step& step) const {
    const auto& outputs = node.get_outputs();
    if (outputs.size() != 1 || outputs[0].tag() != pt2::Argument::Tag::AS_TENSOR) return;
    const auto meta = graph_->get_tensor_values().find(outputs[0].get_as_tensor().get_name());
    if (meta == graph_->get_tensor_values().end()) return;
    const auto dtype = dtype_of(static_cast<int64_t>(meta->second.get_dtype()));
    if (!dtype || !is_floating(*dtype)) return;
    for (const auto& [name, term] : step.args) {
      const auto* list = std::get_if<std::vector<Term>>(&term.value);
      const bool tensor = list != nullptr ? has_tensor(*list) : has_tensor({term});
      if (tensor || name == "dtype") return;
    }
    step.args.emplace_back("dtype", Term{*dtype});
  }
  bool has_tensor(const std::vector<Term>& list) const {
    return std::any_of(list.begin(), list.end(), [&](const Term& term) {
      const auto* slot = std::get_if<Slot>(&term.value);
      return slot != nullptr && body_.slots[static_cast<size_t>(slot->index)] == Kind::tensor;
    });
  }

  int add(const std::string& name, Kind kind) {
    const auto index = static_cast<int>(body_.slots.size());
    if (!names_.emplace(name, index).second) broken(fmt::format("a second value '{}'", name));
    body_.slots.push_back(kind);
    return index;
  }
  Slot find(const std::string& name) const {
    const auto it = names_.find(name);
    if (it == names_.end()) broken(fmt::format("an argument '{}' that nothing before makes", name));
    return {it->second};
  }

  template <class SymArgument>
  Term symbolic(const SymArgument& arg) const {
    if (arg.tag() == SymArgument::Tag::AS_NAME) return {find(arg.get_as_name())};
    if constexpr (std::is_same_v<SymArgument, pt2::SymIntArgument>)
      return {arg.get_as_int()};
    else if constexpr (std::is_same_v<SymArgument, pt2::SymFloatArgument>)
      return {arg.get_as_float().get()};
    else
      return {arg.get_as_bool()};
  }
  Term optional(const pt2::OptionalTensorArgument& arg) const {
    if (arg.tag() == pt2::OptionalTensorArgument::Tag::AS_NONE) return {};
    return {find(arg.get_as_tensor().get_name())};
  }
  template <class List, class F>
  Term list(const List& list, F each) const {
    std::vector<Term> terms;
    for (const auto& item : list) terms.push_back(each(item));
    return {std::move(terms)};
  }

  Term term(const pt2::Argument& arg) const {
    using Tag = pt2::Argument::Tag;
    const auto tensor = [&](const pt2::TensorArgument& t) { return Term{find(t.get_name())}; };
    const auto whole = [](int64_t i) { return Term{i}; };
    const auto real = [](const pt2::F64& x) { return Term{x.get()}; };
    const auto sym = [&](const auto& s) { return symbolic(s); };
    switch (arg.tag()) {
      case Tag::AS_NONE:
        (void)arg.get_as_none();  // throws where the file has a kind that is not known
        return {};
      case Tag::AS_TENSOR:
        return tensor(arg.get_as_tensor());
      case Tag::AS_TENSORS:
        return list(arg.get_as_tensors(), tensor);
      case Tag::AS_OPTIONAL_TENSOR:
        return optional(arg.get_as_optional_tensor());
      case Tag::AS_OPTIONAL_TENSORS:
        return list(arg.get_as_optional_tensors(), [&](const auto& t) { return optional(t); });
      case Tag::AS_NESTED_TENSORS:
        return list(arg.get_as_nested_tensors(),
                    [&](const auto& inner) { return list(inner, tensor); });
      case Tag::AS_INT:
        return whole(arg.get_as_int());
      case Tag::AS_INTS:
        return list(arg.get_as_ints(), whole);
      case Tag::AS_INT_LISTS:
        return list(arg.get_as_int_lists(), [&](const auto& inner) { return list(inner, whole); });
      case Tag::AS_FLOAT:
        return real(arg.get_as_float());
      case Tag::AS_FLOATS:
        return list(arg.get_as_floats(), real);
      case Tag::AS_FLOAT_LISTS:
        return list(arg.get_as_float_lists(), [&](const auto& inner) { return list(inner, real); });
      case Tag::AS_BOOL:
        return {arg.get_as_bool()};
      case Tag::AS_BOOLS:
        return list(arg.get_as_bools(), [](bool b) { return Term{b}; });
      case Tag::AS_STRING:
        return {arg.get_as_string()};
      case Tag::AS_STRINGS:
        return list(arg.get_as_strings(), [](const std::string& s) { return Term{s}; });
      case Tag::AS_SYM_INT:
        return symbolic(arg.get_as_sym_int());
      case Tag::AS_SYM_INTS:
        return list(arg.get_as_sym_ints(), sym);
      case Tag::AS_SYM_FLOAT:
        return symbolic(arg.get_as_sym_float());
      case Tag::AS_SYM_FLOATS:
        return list(arg.get_as_sym_floats(), sym);
      case Tag::AS_SYM_BOOL:
        return symbolic(arg.get_as_sym_bool());
      case Tag::AS_SYM_BOOLS:
        return list(arg.get_as_sym_bools(), sym);
      case Tag::AS_SCALAR_TYPE: {
        const auto code = static_cast<int64_t>(arg.get_as_scalar_type());
        if (const auto dtype = dtype_of(code)) return {*dtype};
        fail(ErrorKind::model, "[import.argument] {} takes dtype number {}, which is not known; {}",
             op_, code, describe(origin_));
      }
      case Tag::AS_MEMORY_FORMAT:
        return {Symbol{format_name(arg.get_as_memory_format())}};
      case Tag::AS_LAYOUT:
        return {Symbol{layout_name(arg.get_as_layout(), origin_)}};
      case Tag::AS_DEVICE:
        return {Symbol{arg.get_as_device().get_type()}};
      case Tag::AS_GRAPH:
        return {std::make_shared<const Body>(
            BodyReader(archive_).read(*arg.get_as_graph().get_graph()))};
      default:
        fail(ErrorKind::model,
             "[import.argument] {} takes a value of kind {}, which has no form "
             "here; {}",
             op_, pt2::printEnum(arg.tag()), describe(origin_));
    }
  }

  // Makes the values that an input of the graph, or a result of a call, is.
  Result define(const pt2::Argument& arg) {
    using Tag = pt2::Argument::Tag;
    const auto one = [&](const std::string& name, Kind kind) { return Result{{add(name, kind)}}; };
    const auto optional_slot = [&](const pt2::OptionalTensorArgument& t) {
      return t.tag() == pt2::OptionalTensorArgument::Tag::AS_NONE
                 ? -1
                 : add(t.get_as_tensor().get_name(), Kind::tensor);
    };
    Result result;
    switch (arg.tag()) {
      case Tag::AS_TENSOR:
        return one(arg.get_as_tensor().get_name(), Kind::tensor);
      case Tag::AS_TENSORS:
        result.list = true;
        for (const auto& t : arg.get_as_tensors())
          result.slots.push_back(add(t.get_name(), Kind::tensor));
        return result;
      case Tag::AS_OPTIONAL_TENSOR:
        return {{optional_slot(arg.get_as_optional_tensor())}};
      case Tag::AS_OPTIONAL_TENSORS:
        result.list = true;
        for (const auto& t : arg.get_as_optional_tensors())
          result.slots.push_back(optional_slot(t));
        return result;
      case Tag::AS_SYM_INT:
        if (arg.get_as_sym_int().tag() == pt2::SymIntArgument::Tag::AS_NAME)
          return one(arg.get_as_sym_int().get_as_name(), Kind::integer);
        return result;
      case Tag::AS_SYM_FLOAT:
        if (arg.get_as_sym_float().tag() == pt2::SymFloatArgument::Tag::AS_NAME)
          return one(arg.get_as_sym_float().get_as_name(), Kind::real);
        return result;
      case Tag::AS_SYM_BOOL:
        if (arg.get_as_sym_bool().tag() == pt2::SymBoolArgument::Tag::AS_NAME)
          return one(arg.get_as_sym_bool().get_as_name(), Kind::truth);
        return result;
      case Tag::AS_CUSTOM_OBJ:
      case Tag::AS_STRING_TO_ARGUMENT:
        fail(ErrorKind::model,
             "[import.argument] {} holds a Python object; expected tensors and "
             "numbers",
             op_.empty() ? "the program" : op_);
      default:
        return result;
    }
  }

  const Archive& archive_;
  const pt2::Graph* graph_ = nullptr;
  Body body_;
  std::unordered_map<std::string, int> names_;
  Origin origin_;  // of the call in work
  std::string op_;
};

Term constant_term(const pt2::ConstantValue& value) {
  using Tag = pt2::ConstantValue::Tag;
  switch (value.tag()) {
    case Tag::AS_INT:
      return {value.get_as_int()};
    case Tag::AS_FLOAT:
      return {value.get_as_float().get()};
    case Tag::AS_STRING:
      return {value.get_as_string()};
    case Tag::AS_BOOL:
      return {value.get_as_bool()};
    default:
      return {};
  }
}

std::vector<std::optional<int64_t>> sizes_of(const pt2::TensorMeta& meta) {
  std::vector<std::optional<int64_t>> sizes;
  for (const pt2::SymInt& size : meta.get_sizes())
    sizes.push_back(size.tag() == pt2::SymInt::Tag::AS_INT ? std::optional(size.get_as_int())
                                                           : std::nullopt);
  return sizes;
}

Input read_input(const Archive& archive, const pt2::InputSpec& spec, const pt2::Graph& graph) {
  using Tag = pt2::InputSpec::Tag;
  Input input;
  switch (spec.tag()) {
    case Tag::PARAMETER:
      input.role = Role::parameter;
      input.name = spec.get_parameter().get_parameter_name();
      return input;
    case Tag::BUFFER:
      input.role = Role::buffer;
      input.name = spec.get_buffer().get_buffer_name();
      input.persistent = spec.get_buffer().get_persistent();
      return input;
    case Tag::TENSOR_CONSTANT:
      input.role = Role::constant;
      input.name = spec.get_tensor_constant().get_tensor_constant_name();
      return input;
    case Tag::CONSTANT_INPUT:
      input.role = Role::number;
      input.name = spec.get_constant_input().get_name();
      input.value = constant_term(spec.get_constant_input().get_value());
      return input;
    case Tag::USER_INPUT: {
      const pt2::Argument& arg = spec.get_user_input().get_arg();
      if (arg.tag() != pt2::Argument::Tag::AS_TENSOR) return input;
      input.name = arg.get_as_tensor().get_name();
      const auto meta = graph.get_tensor_values().find(input.name);
      if (meta == graph.get_tensor_values().end())
        archive.refuse(fmt::format("is damaged: it does not say what input '{}' is", input.name));
      input.dtype = dtype_of(static_cast<int64_t>(meta->second.get_dtype()));
      input.sizes = sizes_of(meta->second);
      return input;
    }
    default:
      throw Error(ErrorKind::model,
                  "[import.signature] the program takes a Python object or an effect token; "
                  "expected tensors and numbers",
                  "export a module whose forward takes and keeps tensors only");
  }
}

void read_output(const pt2::OutputSpec& spec, size_t index, Program& program) {
  using Tag = pt2::OutputSpec::Tag;
  switch (spec.tag()) {
    case Tag::USER_OUTPUT:
      program.results.push_back(index);
      return;
    case Tag::BUFFER_MUTATION:
      program.updates.emplace_back(index, spec.get_buffer_mutation().get_buffer_name());
      return;
    case Tag::LOSS_OUTPUT:
    case Tag::GRADIENT_TO_PARAMETER:
    case Tag::GRADIENT_TO_USER_INPUT:
      throw Error(ErrorKind::model,
                  "[import.signature] the program holds its own backward; expected forward alone",
                  "export the module with torch.export.export, without a joint graph");
    default:
      throw Error(ErrorKind::model,
                  "[import.signature] the program writes to its inputs or parameters",
                  "write to a copy (x = x.clone()), or keep the state in a buffer");
  }
}

void read_signature(const Archive& archive, const pt2::GraphModule& module, Program& program) {
  const pt2::GraphSignature& signature = module.get_signature();
  for (const pt2::InputSpec& spec : signature.get_input_specs())
    program.inputs.push_back(read_input(archive, spec, module.get_graph()));
  if (program.inputs.size() != program.body.inputs.size())
    archive.refuse("is damaged: signature and graph have different inputs");
  size_t index = 0;
  for (const pt2::OutputSpec& spec : signature.get_output_specs())
    read_output(spec, index++, program);
  if (index != program.body.outputs.size())
    archive.refuse("is damaged: signature and graph have different outputs");
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    if (!input.name.empty() && !is_plain_name(input.name))
      archive.refuse("is damaged: an input has a name that is no text");
    const bool tensor = input.role != Role::number && (input.role != Role::input || input.dtype);
    const int slot = program.body.inputs[i];
    const bool takes = slot >= 0 && program.body.slots[static_cast<size_t>(slot)] == Kind::tensor;
    if (tensor != takes)
      archive.refuse(fmt::format("is damaged: '{}' is no tensor of its graph", input.name));
  }
}

// Weights of the file against the signature.
void match_stored(const Archive& archive, const Program& program) {
  const auto stored = [&](const std::string& name) {
    return std::any_of(program.stored.begin(), program.stored.end(),
                       [&](const Stored& s) { return s.name == name; });
  };
  for (const Input& input : program.inputs)
    if (input.role != Role::input && input.role != Role::number && !stored(input.name))
      archive.refuse(fmt::format("holds no values of '{}'", input.name));
}

void read_trees(const Archive& archive, const pt2::GraphModule& module, Program& program) {
  std::map<std::string, std::vector<std::string>> named_tuples;
  for (const auto& [type, fields] : module.get_treespec_namedtuple_fields())
    named_tuples[type] = fields.get_field_names();
  const auto& calls = module.get_module_call_graph();
  const auto root = std::find_if(calls.begin(), calls.end(),
                                 [](const auto& call) { return call.get_fqn().empty(); });
  if (root == calls.end() || !root->get_signature())
    archive.refuse("is damaged: it does not say how the model is called");
  program.arguments = read_tree(archive, root->get_signature()->get_in_spec(), named_tuples);
  program.returned = read_tree(archive, root->get_signature()->get_out_spec(), named_tuples);
  program.argument_names =
      root->get_signature()->get_forward_arg_names().value_or(std::vector<std::string>{});
  const auto given = std::count_if(program.inputs.begin(), program.inputs.end(), [](const auto& i) {
    return i.role == Role::input || i.role == Role::number;
  });
  // (arguments, keyword arguments)
  const Tree& tree = program.arguments;
  if (tree.children.size() != 2 || count_leaves(tree) != static_cast<size_t>(given) ||
      count_leaves(program.returned) != program.results.size())
    archive.refuse("is damaged: arguments or results differ from those of its graph");
  if (!std::all_of(program.argument_names.begin(), program.argument_names.end(), is_plain_name))
    archive.refuse("is damaged: an argument has a name that is no text");
}

// The class of the exported module: "__main__.GPT" of the first call's outermost module.
// Stacks begin with the exported module itself, "key,,package.Class"; calls of the exporter's own
// have other ones.
std::string class_name(const pt2::Graph& graph) {
  for (const pt2::Node& node : graph.get_nodes()) {
    const auto it = node.get_metadata().find("nn_module_stack");
    if (it == node.get_metadata().end()) continue;
    const std::string root = it->second.substr(0, it->second.find(';'));
    const std::string name = root.substr(root.find_last_of(",.") + 1);
    if (root.find(",,") != std::string::npos && is_plain_name(name)) return name;
  }
  return "Imported";
}

void check_version(const Archive& archive, const pt2::ExportedProgram& exported) {
  const int64_t major = exported.get_schema_version().get_major();
  if (major != kMajor)
    archive.refuse(fmt::format("has an exported program of schema version {}.{}; expected {}.x",
                               major, exported.get_schema_version().get_minor(), kMajor),
                   "export the model with PyTorch 2.11 to 2.15");
}

}  // namespace

Program read_program(const Archive& archive) {
  if (!archive.has(kModel))
    archive.refuse(fmt::format("has no record '{}'", kModel),
                   "export one model: torch.export.save(program, path)");
  const nlohmann::json json = parse_json(archive, kModel, archive.read(kModel));
  Program program;
  try {
    // Before the rest, which may be spelled otherwise.
    pt2::ExportedProgram version;
    version.set_schema_version(json.at("schema_version").get<pt2::SchemaVersion>());
    check_version(archive, version);
    const auto exported = json.get<pt2::ExportedProgram>();
    const pt2::GraphModule& module = exported.get_graph_module();
    program.torch_version = exported.get_torch_version();
    program.name = class_name(module.get_graph());
    program.body = BodyReader(archive).read(module.get_graph());
    read_signature(archive, module, program);
    spell_statistics(program);
    read_trees(archive, module, program);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    archive.refuse(fmt::format("is damaged, or of a newer PyTorch: {}: {}", kModel, e.what()));
  }
  program.stored = read_stored(archive);
  match_stored(archive, program);
  return program;
}

}  // namespace nns::trace::import
