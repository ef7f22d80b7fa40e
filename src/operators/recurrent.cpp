// Records of recurrent layers: a stack of LSTM, GRU or Elman layers over a whole sequence is one
// operator, whose steps follow one another. The batch may be split; gradients are autograd's.
#include "operators/family.h"

namespace nns::operators {
namespace {

// Weights and biases of a direction of a layer stand together in `params`.
struct Stack {
  const TensorType* input;
  std::vector<const TensorType*> states, params;
  bool batch_first;
  int64_t width;  // of the results of a step
  size_t batch;   // axis of the input
};
Stack stack_of(const CallView& call) {
  Stack s{&call.tensor("input"), {}, call.tensors("params"), call.boolean("batch_first"), 0, 0};
  if (call.is_tensor("hx"))
    s.states = {&call.tensor("hx")};
  else
    s.states = call.tensors("hx");
  s.batch = s.batch_first ? 0 : 1;
  const Shape& in = s.input->shape;
  const int64_t directions = call.boolean("bidirectional") ? 2 : 1;
  const int64_t runs = call.integer("num_layers") * directions;
  if (call.boolean("train") && call.real("dropout", 0) > 0)
    call.fail(
        "dropout draws random numbers from hidden state; expected 0, and F.dropout between "
        "calls of one layer each, as nn.LSTM has it");
  if (in.size() != 3)
    call.fail(fmt::format("{}; expected [{}, width]", to_string(*s.input),
                          s.batch_first ? "batch, time" : "time, batch"));
  const bool biased = call.boolean("has_biases");
  const size_t least = static_cast<size_t>(runs) * (biased ? 4 : 2);
  if (s.params.size() < least || s.params.front()->shape.size() != 2)
    call.fail(fmt::format("{} weights and biases; expected {} at least", s.params.size(), least));
  if (s.params.front()->shape[1] != in[2])
    misfit(call, *s.input, *s.params.front(), fmt::format("weights of {} inputs", in[2]));
  if (s.states.empty()) call.fail("no first state; expected zeros at least");
  for (const TensorType* state : s.states)
    if (state->shape.size() != 3 || state->shape[0] != runs || state->shape[1] != in[s.batch])
      misfit(call, *s.input, *state,
             fmt::format("a first state of shape [{}, {}, …]", runs, in[s.batch]));
  s.width = s.states.front()->shape[2] * directions;
  return s;
}
Types recurrent(const CallView& call) {
  const Stack s = stack_of(call);
  TensorType out = *s.input;
  out.shape[2] = s.width;
  Types types = {out};
  for (const TensorType* state : s.states) types.push_back(*state);
  return types;
}
Texts recurrent_text(const CallView& call) {
  const Stack s = stack_of(call);
  const auto name = [](const Shape& shape, size_t batch) {
    DimTexts dims;
    for (size_t i = 0; i < shape.size(); ++i)
      dims.push_back(i == batch ? "n" : std::to_string(shape[i]));
    return dims;
  };
  std::vector<DimTexts> in = {name(s.input->shape, s.batch)}, out;
  for (const TensorType* state : s.states) in.push_back(name(state->shape, 1));
  for (const TensorType* weight : s.params) in.push_back(name(weight->shape, 2));
  const Types types = recurrent(call);
  for (size_t i = 0; i < types.size(); ++i)
    out.push_back(name(types[i].shape, i == 0 ? s.batch : 1));
  return {annotation(in, out)};
}
double recurrent_flops(const CallView& call) {
  const Stack s = stack_of(call);
  double weights = 0;
  for (const TensorType* weight : s.params)
    if (weight->shape.size() == 2) weights += static_cast<double>(numel(weight->shape));
  return 2 * weights * static_cast<double>(s.input->shape[0] * s.input->shape[1]);
}

}  // namespace

void add_recurrent(Records& records) {
  // Those of packed sequences (lstm.data) have shapes of their own and none here.
  records.add(
      {"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"},
      {.infer = recurrent, .annotations = recurrent_text, .flops = recurrent_flops});

  records.examples(
      "lstm.input",
      "{ f(5, 4, 3), { f(1, 4, 2), f(1, 4, 2) }, { f(8, 3), f(8, 2), f(8), f(8) }, true, 1, 0, "
      "true, false, false }, { f(4, 5, 3), { f(2, 4, 2), f(2, 4, 3) }, { f(12, 3), f(12, 2), f(2, "
      "3), f(12, 3), f(12, 2), f(2, 3) }, false, 1, 0, true, true, true }");
  records.examples("gru.input",
                   "{ f(5, 4, 3), f(1, 4, 2), { f(6, 3), f(6, 2), f(6), f(6) }, true, 1, 0, true, "
                   "false, false }");
  records.examples("rnn_tanh.input rnn_relu.input",
                   "{ f(5, 4, 3), f(2, 4, 2), { f(2, 3), f(2, 2), f(2, 2), f(2, 2) }, false, 2, 0, "
                   "true, false, false }");
}

}  // namespace nns::operators
