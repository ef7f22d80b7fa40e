// Communication as operators with derivatives (Megatron's pairs, Shoeybi 2019; nnScaler's
// adapters).
//
// Starts are for the instruction only: a device's own may stand there later (lower/holes.h).
//
// `group`: ranks that call a collective, ascending; `ring`: ranks in the order of their pieces,
// that send each other messages.
//
// Along each mesh axis the gradient of a value is whole where the value is replicated or an addend,
// and cut where the value is cut. Where the work behind a replicated value is shared out, the
// gradient that comes back is an addend (`partial`), and is summed on the way.
#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

// Whether the micro-batch counts for nothing: what other ranks wait for are zeros then.
const graph::Symbol kEmpty{"$empty"};

Ref emit(B& b, const char* op, std::vector<NamedArg> args) {
  args.insert(args.begin(), {"self", b.grad()});
  return b.e.call_typed(op, std::move(args), {b.type("self")}).front();
}

Ref all_reduced(B& b, const Shape& group) {
  return group.empty() ? b.grad() : emit(b, "comm::all_reduce", {{"group", group}});
}

// The forward call itself, without what only its derivative asks for.
bool forward(Forward& f, const char* op, std::initializer_list<const char*> names,
             TensorType type) {
  std::vector<NamedArg> args{{"self", f.in("self")}};
  for (const char* name : names) args.push_back({name, f.arg(name)});
  f.result(f.e.call_typed(op, std::move(args), {std::move(type)}).front());
  return true;
}
bool plain_all_reduce(Forward& f) {
  return forward(f, "comm::all_reduce", {"group"}, f.type("self"));
}
bool plain_all_gather(Forward& f) {
  TensorType type = f.type("self");
  type.shape.at(static_cast<size_t>(f.integer("dim"))) = f.integer("whole");
  return forward(f, "comm::all_gather", {"dim", "whole", "group"}, std::move(type));
}

// V → R. The gradient is whole on all, once it is summed over the axes where it is an addend.
void all_reduce(B& b) {
  b.give("self", all_reduced(b, b.ints("grad_group")));
}

// R → R whose gradient is an addend. No data moves in the forward pass.
bool copy(Forward& f) {
  f.result(f.e.call_typed("aten::alias", {{"self", f.in("self")}}, {f.type("self")}).front());
  return true;
}
void copy_back(B& b) {
  b.give("self", all_reduced(b, b.ints("grad_group")));
}

// A weight whose gradient counts on the first rank of the group only.
void owned_back(B& b) {
  b.give("self", emit(b, "comm::value_chunk", {{"group", b.arg("group")}}));
}

NamedArg same(B& b, const char* name) {
  return {name, b.arg(name)};
}

// D → R.
void all_gather(B& b) {
  if (b.boolean("partial"))
    b.give("self", emit(b, "comm::reduce_scatter", {same(b, "dim"), same(b, "group")}));
  else
    b.give("self",
           b.e.emit_typed({b.type("self")}, "aten::narrow", b.grad(), b.arg("dim"), b.arg("start"),
                          b.shape("self").at(static_cast<size_t>(b.integer("dim"))))
               .front());
}

// The shards of a weight, whole for use; its gradient goes to the shards.
bool gather_weight(Forward& f) {
  return plain_all_gather(f);
}
// Addends of 16 bits are summed in float32.
void scatter_gradient(B& b) {
  TensorType sum = b.type("self");
  if (sum.dtype == DType::bf16 || sum.dtype == DType::f16) sum.dtype = DType::f32;
  b.give("self", b.e.call_typed("comm::scatter_gradient",
                                {{"self", b.e.cast(b.grad(), sum.dtype)},
                                 same(b, "dim"),
                                 same(b, "group"),
                                 {"empty", kEmpty}},
                                {sum})
                     .front());
}

// R → D: a local slice.
bool chunk(Forward& f) {
  TensorType type = f.type("self");
  type.shape.at(static_cast<size_t>(f.integer("dim"))) = f.integer("length");
  f.result(f.e.emit_typed({type}, "aten::narrow", f.in("self"), f.arg("dim"), f.arg("start"),
                          f.arg("length"))
               .front());
  return true;
}
void chunk_back(B& b) {
  const int64_t whole = b.shape("self").at(static_cast<size_t>(b.integer("dim")));
  b.give("self", emit(b, "comm::all_gather", {same(b, "dim"), {"whole", whole}, same(b, "group")}));
}

// V → D.
void reduce_scatter(B& b) {
  const int64_t whole = b.shape("self").at(static_cast<size_t>(b.integer("dim")));
  b.give("self", emit(b, "comm::all_gather", {same(b, "dim"), {"whole", whole}, same(b, "group")}));
}

// D(from) → D(dim).
void all_to_all(B& b) {
  const int64_t whole = b.shape("self").at(static_cast<size_t>(b.integer("dim")));
  b.give(
      "self",
      emit(b, "comm::all_to_all",
           {{"dim", b.arg("from")}, {"from", b.arg("dim")}, {"whole", whole}, same(b, "group")}));
}

// Rows to the ranks that want them, and the rows behind them zero: their gradients go back.
void exchange_rows(B& b) {
  b.give("self", emit(b, "comm::exchange_rows",
                      {{"sends", b.arg("receives")},
                       {"receives", b.arg("sends")},
                       {"rows", b.shape("self")[0]},
                       same(b, "ring")}));
}

// Regions point to point: every holder gets a whole gradient back.
bool move(Forward& f) {
  return forward(f, "comm::move", {"shape", "sends", "receives"},
                 {f.ints("shape"), f.type("self").dtype});
}
void move_back(B& b) {
  b.give("self", emit(b, "comm::move",
                      {{"shape", b.shape("self")},
                       {"sends", b.arg("back_sends")},
                       {"receives", b.arg("back_receives")},
                       {"empty", kEmpty}}));
}

// R → V: the first keeps the value, the others hold zeros; each gradient is whole.
void value_chunk(B& b) {
  b.give("self", b.grad());
}

using C = Communication;

}  // namespace

// Types of results are said where a call is written: they depend on the layouts.
void add_communication(Records& records) {
  const auto add = [&](const char* schema, Communication kind, Derivative derivative = {}) {
    const std::string_view text(schema);
    records.add(
        {text.substr(0, text.find('('))},
        {.schema = parse_schema(text), .communication = kind, .derivative = std::move(derivative)});
  };
  add("comm::all_reduce(Tensor self, int[] group, *, str reduce=\"sum\", int[] grad_group=[]) -> "
      "Tensor",
      C::all_reduce, rewrite(plain_all_reduce, all_reduce));
  add("comm::all_gather(Tensor self, int dim, int whole, int[] group, int start=0, "
      "bool partial=False) -> Tensor",
      C::all_gather, rewrite(plain_all_gather, all_gather));
  add("comm::reduce_scatter(Tensor self, int dim, int[] group) -> Tensor", C::reduce_scatter,
      gradient(reduce_scatter));
  add("comm::scatter_gradient(Tensor self, int dim, int[] group, bool empty=False) -> Tensor",
      C::scatter_gradient);
  add("comm::scatter_gradients(Tensor[] self, int[] dims, int[] group, bool empty=False) -> "
      "Tensor[]",
      C::scatter_gradient);
  add("comm::all_to_all(Tensor self, int dim, int from, int whole, int[] group) -> Tensor",
      C::all_to_all, gradient(all_to_all));
  add("comm::exchange_rows(Tensor self, Tensor sends, Tensor receives, int rows, int[] ring) -> "
      "Tensor",
      C::exchange, gradient(exchange_rows));
  add("comm::rotate(Tensor self, int dim, int length, int[] ring) -> Tensor", C::rotate);
  add("comm::zigzag(Tensor self, int dim, int[] ring, bool back=False) -> Tensor", C::zigzag);
  add("comm::value_chunk(Tensor self, int[] group) -> Tensor", C::value_chunk,
      gradient(value_chunk));
  add("comm::move(Tensor self, int[] shape, int[] sends, int[] receives, bool empty=False, int[] "
      "back_sends=[], "
      "int[] back_receives=[]) -> Tensor",
      C::move, rewrite(move, move_back));
  add("comm::send(Tensor self, int[] moves, int tag, int first, bool empty=False) -> ()", C::send);
  add("comm::receive(int[] shape, int[] moves, int tag, int first, *, ScalarType dtype) -> Tensor",
      C::receive);
  add("comm::chunk(Tensor self, int dim, int start, int length, int[] group) -> Tensor", C::adapter,
      rewrite(chunk, chunk_back));
  add("comm::copy(Tensor self, int[] grad_group) -> Tensor", C::adapter, rewrite(copy, copy_back));
  add("comm::owned(Tensor self, int[] group) -> Tensor", C::adapter, rewrite(copy, owned_back));
  add("comm::gather_weight(Tensor self, int dim, int whole, int[] group) -> Tensor", C::adapter,
      rewrite(gather_weight, scatter_gradient));

  // Copies to memory of the host and back, laid out as they were.
  records.add({kToHost}, {.schema = parse_schema(fmt::format("{}(Tensor self) -> Tensor", kToHost)),
                          .on_host = true});
  records.add(
      {kFromHost},
      {.schema = parse_schema(fmt::format("{}(Tensor self, str device) -> Tensor", kFromHost))});

  // A user's function before or after a call of the plan.
  for (const std::string_view name : {"hook::before", "hook::after"})
    records.add({name}, {.schema = parse_schema(
                             fmt::format("{}(str name, str? meta, Tensor[] tensors) -> ()", name)),
                         .hook = true});
}

}  // namespace nns::operators
