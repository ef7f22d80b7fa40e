// A call under construction for the tests of records: tensors are given by type.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "operators/record.h"

namespace nns::tests {

using graph::ValueRef;
using operators::Arg;
using operators::CallView;
using operators::NamedArg;

struct Call {
  std::string op;
  std::vector<NamedArg> args;
  std::vector<TensorType> types;

  explicit Call(std::string name) : op(std::move(name)) {}
  Call& tensor(const char* name, Shape shape, DType dtype = DType::f32) {
    types.push_back({std::move(shape), dtype});
    args.push_back({name, ValueRef{static_cast<int>(types.size()) - 1}});
    return *this;
  }
  Call& tensors(const char* name, std::vector<Shape> shapes) {
    std::vector<ValueRef> refs;
    for (Shape& shape : shapes) {
      types.push_back({std::move(shape), DType::f32});
      refs.push_back({static_cast<int>(types.size()) - 1});
    }
    args.push_back({name, refs});
    return *this;
  }
  Call& arg(const char* name, Arg value) {
    args.push_back({name, std::move(value)});
    return *this;
  }
  CallView view() const {
    return CallView(op, args, [this](int id) -> const TensorType& { return types.at(id); });
  }
  std::string types_text() const {
    std::string out;
    for (const TensorType& t : operators::infer(view()))
      out += (out.empty() ? "" : " ") + to_string(t);
    return out;
  }
  std::string failure() const {
    try {
      operators::infer(view());
    } catch (const Error& e) {
      NNS_CHECK(e.kind() == ErrorKind::model, "another kind of error");
      return e.message();
    }
    return "no error";
  }
  std::string note() const {
    const operators::Texts texts = operators::annotations(view());
    return texts.empty() ? "" : texts[0];
  }
};

}  // namespace nns::tests
