// Records of operators that answer with something else than tensors: elements of data, which a
// model under trace does not have, and what its shapes and dtypes say.
#include "operators/family.h"

namespace nns::operators {
namespace {

Arg size_of_dim(const CallView& call) {
  const TensorType& type = call.tensor("self");
  const auto rank = static_cast<int64_t>(type.shape.size());
  const int64_t dim = call.integer("dim");
  if (dim < -rank || dim >= rank)
    fail(ErrorKind::model, "[trace.size] dimension {} of {}", dim, to_string(type));
  return type.shape[static_cast<size_t>(dim < 0 ? dim + rank : dim)];
}

std::optional<std::string> always(const CallView&) {
  return "";
}
// Of the overload that repeats by a tensor: where nobody says how many there will be.
std::optional<std::string> without_size(const CallView& call) {
  if (!call.is_tensor("repeats") || call.has("output_size")) return std::nullopt;
  return "";
}

}  // namespace

void add_queries(Records& records) {
  records.add({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal",
               "aten::allclose", "aten::Bool", "aten::Int", "aten::Float", "aten::ScalarImplicit",
               "aten::tolist"},
              {.answer = Answer::data});

  records.add(
      {"aten::size", "aten::sym_size"},
      {.answer = Answer::shape, .ask = [](const CallView& c) { return Arg(c.shape("self")); }});
  records.add({"aten::size.int", "aten::sym_size.int"},
              {.answer = Answer::shape, .ask = size_of_dim});
  records.add({"aten::dim"}, {.answer = Answer::shape,
                              .ask = [](const CallView& c) { return Arg(c.rank("self")); }});
  records.add({"aten::numel", "aten::sym_numel"},
              {.answer = Answer::shape,
               .ask = [](const CallView& c) { return Arg(numel(c.shape("self"))); }});
  records.add({"aten::is_floating_point"}, {.answer = Answer::shape, .ask = [](const CallView& c) {
                                              return Arg(is_floating(c.type("self").dtype));
                                            }});
  records.add({"aten::is_complex"}, {.answer = Answer::shape, .ask = [](const CallView& c) {
                                       return Arg(is_complex(c.type("self").dtype));
                                     }});

  records.add({"aten::nonzero_numpy", "aten::unique_dim_consecutive"}, {.depends_on_data = always});
  records.set({"aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2",
               "aten::bincount", "aten::argwhere", "aten::_unique", "aten::unique_consecutive"},
              [](Record& r) { r.depends_on_data = always; });
  records.set({"aten::where"}, [](Record& r) {  // of the condition alone: its positions
    r.depends_on_data = [](const CallView& c) {
      return c.find("self") == nullptr ? std::optional<std::string>("") : std::nullopt;
    };
  });
  records.set({"aten::repeat_interleave"}, [](Record& r) { r.depends_on_data = without_size; });
  records.set({"aten::tensor_split"}, [](Record& r) {
    r.depends_on_data = [](const CallView& c) {
      return c.is_tensor("tensor_indices_or_sections") ? std::optional<std::string>("")
                                                       : std::nullopt;
    };
  });
  records.set({"aten::index"}, [](Record& r) {
    r.depends_on_data = [](const CallView& c) -> std::optional<std::string> {
      for (const TensorType* index : c.tensors("indices"))
        if (index != nullptr && (index->dtype == DType::boolean || index->dtype == DType::u8))
          return "with a boolean mask";
      return std::nullopt;
    };
  });
  records.set({"aten::one_hot"}, [](Record& r) {
    r.depends_on_data = [](const CallView& c) {
      return c.integer("num_classes", -1) < 0 ? std::optional<std::string>("without num_classes")
                                              : std::nullopt;
    };
  });
}

}  // namespace nns::operators
