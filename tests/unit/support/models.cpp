// The models, and comparisons of outcomes.
#include "support/models.h"

#include <fmt/format.h>

#include <cmath>

#include "support/graph_text.h"

namespace nns::test {
namespace {

GraphPtr share(const std::string& text) {
  return std::make_shared<const graph::Graph>(read_graph(text));
}

std::string parameter(const std::string& name, const std::string& type) {
  return fmt::format("parameter %{} \"{}\": float64{} grad\n", name, name, type);
}

// y = x + proj(gelu(fc(norm x)))
std::string feed_forward(int i) {
  const std::string h = fmt::format("h.{}", i);
  return parameter(h + ".ln.weight", "[6]") + parameter(h + ".ln.bias", "[6]") +
         parameter(h + ".fc.weight", "[12, 6]") + parameter(h + ".fc.bias", "[12]") +
         parameter(h + ".proj.weight", "[6, 12]") + parameter(h + ".proj.bias", "[6]") +
         fmt::format(
             "%n{0} = aten::layer_norm(input=%x{0}, normalized_shape=[6], "
             "weight=%{1}.ln.weight, bias=%{1}.ln.bias, eps=0.01)  -- {1}.ln\n"
             "%f{0} = aten::linear(input=%n{0}, weight=%{1}.fc.weight, "
             "bias=%{1}.fc.bias)  -- {1}.fc\n"
             "%g{0} = aten::gelu(self=%f{0}, approximate=\"none\")  -- {1}\n"
             "%p{0} = aten::linear(input=%g{0}, weight=%{1}.proj.weight, "
             "bias=%{1}.proj.bias)  -- {1}.proj\n"
             "%x{2} = aten::add.Tensor(self=%x{0}, other=%p{0}, alpha=1)  -- {1}\n",
             i, h, i + 1);
}

std::string attention(int i) {
  const std::string h = fmt::format("h.{}.attn", i);
  std::string text =
      parameter(h + ".qkv.weight", "[18, 6]") + parameter(h + ".out.weight", "[6, 6]");
  text += fmt::format(
      "%qkv{0} = aten::linear(input=%x{0}, weight=%{1}.qkv.weight)  -- {1}.qkv\n"
      "%q{0}, %k{0}, %v{0} = aten::split.Tensor(self=%qkv{0}, split_size=6, dim=2)"
      "  -- {1}\n",
      i, h);
  for (const char* name : {"q", "k", "v"})
    text += fmt::format(
        "%{2}r{0} = aten::reshape(self=%{2}{0}, shape=[4, 2, 2, 3])  -- {1}\n"
        "%{2}t{0} = aten::transpose.int(self=%{2}r{0}, dim0=1, dim1=2)  -- {1}\n",
        i, h, name);
  return text + fmt::format(
                    "%a{0} = aten::scaled_dot_product_attention(query=%qt{0}, key=%kt{0}, "
                    "value=%vt{0}, is_causal=true)  -- {1}\n"
                    "%at{0} = aten::transpose.int(self=%a{0}, dim0=1, dim1=2)  -- {1}\n"
                    "%ar{0} = aten::reshape(self=%at{0}, shape=[4, 2, 6])  -- {1}\n"
                    "%o{0} = aten::linear(input=%ar{0}, weight=%{1}.out.weight)  -- {1}.out\n"
                    "%d{0} = aten::dropout(input=%o{0}, p=0.3, train=true)  -- {1}.drop\n"
                    "%xa{0} = aten::add.Tensor(self=%x{0}, other=%d{0}, alpha=1)  -- {1}\n",
                    i, h);
}

std::string head(int blocks) {
  return fmt::format(
      "%y = aten::linear(input=%x{0}, weight=%wte)  -- head\n"
      "%yr = aten::reshape(self=%y, shape=[8, 10])\n"
      "%tr = aten::reshape(self=%t, shape=[8])\n"
      "%loss = aten::cross_entropy_loss(self=%yr, target=%tr, weight=nil, reduction=1, "
      "ignore_index=-100, label_smoothing=0.0)\noutput %loss\n",
      blocks);
}

std::string stem(const char* name, bool training) {
  return fmt::format("graph \"{}\" {}\ninput %i \"i\": int64[4, 2]\ninput %t \"t\": int64[4, 2]\n",
                     name, training ? "training" : "evaluation") +
         parameter("wte", "[10, 6]") +
         "%x0 = aten::embedding(weight=%wte, indices=%i, padding_idx=-1, "
         "scale_grad_by_freq=false, sparse=false)  -- wte\n";
}

}  // namespace

GraphPtr perceptrons(int blocks, bool training) {
  std::string text = stem("Perceptrons", training);
  for (int i = 0; i < blocks; ++i) text += feed_forward(i);
  return share(text + head(blocks));
}

GraphPtr transformer(int blocks) {
  std::string text = stem("Transformer", true);
  for (int i = 0; i < blocks; ++i) {
    std::string rest = feed_forward(i);
    // The second half reads what attention made.
    for (const std::string& from : {fmt::format("input=%x{}", i), fmt::format("self=%x{}", i)})
      for (size_t at; (at = rest.find(from + ",")) != std::string::npos;)
        rest.replace(at, from.size(), from.substr(0, from.find('%')) + fmt::format("%xa{}", i));
    text += attention(i) + rest;
  }
  return share(text + head(blocks));
}

GraphPtr convolutions(bool training) {
  return share(
      fmt::format("graph \"Convolutions\" {}\ninput %x \"x\": float64[4, 2, 6]\n"
                  "input %t \"t\": float64[4, 4]\n",
                  training ? "training" : "evaluation") +
      parameter("conv.weight", "[4, 2, 3]") + parameter("conv.bias", "[4]") +
      parameter("norm.weight", "[4]") + parameter("norm.bias", "[4]") +
      parameter("fc.weight", "[6, 16]") + parameter("fc.bias", "[6]") +
      parameter("out.weight", "[4, 6]") +
      "buffer %norm.running_mean \"norm.running_mean\": float64[4]\n"
      "buffer %norm.running_var \"norm.running_var\": float64[4]\n"
      "%c = aten::conv1d(input=%x, weight=%conv.weight, bias=%conv.bias, stride=[1], padding=[0], "
      "dilation=[1], groups=1)  -- conv\n" +
      (training ? "%n: float64[4, 4, 4] grad, %m: float64[4], %v: float64[4] = "
                  "aten::batch_norm(input=%c, weight=%norm.weight, bias=%norm.bias, "
                  "running_mean=%norm.running_mean, running_var=%norm.running_var, training=true, "
                  "momentum=0.1, eps=0.01, cudnn_enabled=true)  -- norm\n"
                  "update %norm.running_mean = %m\nupdate %norm.running_var = %v\n"
                : "%sq = aten::square(self=%norm.running_var)  -- norm\n"
                  "%n = aten::batch_norm(input=%c, weight=%norm.weight, bias=%norm.bias, "
                  "running_mean=%norm.running_mean, running_var=%sq, training=false, "
                  "momentum=0.1, eps=0.01, cudnn_enabled=true)  -- norm\n") +
      "%r = aten::relu(self=%n)\n"
      "%f = aten::reshape(self=%r, shape=[4, 16])\n"
      "%h = aten::linear(input=%f, weight=%fc.weight, bias=%fc.bias)  -- fc\n"
      "%a = aten::tanh(self=%h)\n"
      "%y = aten::linear(input=%a, weight=%out.weight)  -- out\n"
      "%loss = aten::mse_loss(self=%y, target=%t, reduction=1)\n"
      "output %loss\noutput { \"y\" = %y, \"n\" = 2 }\n");
}

GraphPtr alike(int blocks) {
  std::string text = "graph \"Alike\" training\ninput %x0 \"x\": float64[4, 6]\n";
  for (int i = 0; i < blocks; ++i) {
    const std::string h = fmt::format("h.{}", i);
    text += parameter(h + ".a.weight", "[6, 6]") + parameter(h + ".b.weight", "[6, 6]");
    text += fmt::format(
        "%a{0} = aten::linear(input=%x{0}, weight=%{1}.a.weight)  -- {1}.a\n"
        "%r{0} = aten::relu(self=%a{0})  -- {1}\n"
        "%b{0} = aten::linear(input=%r{0}, weight=%{1}.b.weight)  -- {1}.b\n"
        "%x{2} = aten::relu(self=%b{0})  -- {1}\n",
        i, h, i + 1);
  }
  return share(text + fmt::format("%loss = aten::sum(self=%x{})\noutput %loss\n", blocks));
}

namespace {

// x → linear → … of these widths; `rest` goes from %xN to %loss.
GraphPtr linears_to(const std::vector<int>& widths, const std::string& rest) {
  std::string text =
      fmt::format("graph \"Linears\" training\ninput %x0 \"x\": float64[4, {}]\n", widths[0]);
  for (size_t i = 0; i + 1 < widths.size(); ++i)
    text += parameter(fmt::format("fc{}.weight", i),
                      fmt::format("[{}, {}]", widths[i + 1], widths[i])) +
            fmt::format("%x{1} = aten::linear(input=%x{0}, weight=%fc{0}.weight)  -- fc{0}\n", i,
                        i + 1);
  return share(text + rest + "output %loss\n");
}

}  // namespace

GraphPtr linears() {
  return linears_to({8, 6, 10, 4, 8}, "%s = aten::sin(self=%x4)\n%loss = aten::sum(self=%s)\n");
}

GraphPtr linears(const std::vector<int>& widths) {
  return linears_to(widths, fmt::format("%loss = aten::sum(self=%x{})\n", widths.size() - 1));
}

GraphPtr oddities() {
  return share(
      "graph \"Oddities\" training\ninput %x \"x\": float64[4, 6]\ninput %i \"i\": int64[4]\n" +
      parameter("a", "[6, 8]") + parameter("b", "[8]") + parameter("c", "[6]") +
      parameter("d", "[3, 8]") + parameter("unused", "[2, 2]") +
      "constant %mask \"\": bool[8] values=0 1 0 0 1 0 0 1\n"
      "%at = aten::transpose.int(self=%a, dim0=0, dim1=1)  -- m\n"
      "%s = aten::softmax.int(self=%at, dim=1)  -- m\n"
      "%xc = aten::mul.Tensor(self=%x, other=%c)  -- m\n"
      "%h = aten::linear(input=%xc, weight=%s, bias=%b)  -- m\n"
      "%mk = aten::masked_fill.Scalar(self=%h, mask=%mask, value=0.25)  -- m\n"
      "%u, %v = aten::split.Tensor(self=%mk, split_size=4, dim=1)  -- m\n"
      "%w = aten::mul.Tensor(self=%u, other=%v)  -- m\n"
      "%cat = aten::cat(tensors=[%w, %v], dim=1)  -- m\n"
      "%row = aten::embedding(weight=%d, indices=%i)  -- m\n"
      "%e = aten::add.Tensor(self=%cat, other=%row, alpha=2)  -- m\n"
      "%stop = aten::detach(self=%e)  -- m\n"
      "%norm = aten::linalg_vector_norm(self=%stop, ord=2.0, dim=[1], keepdim=true)  -- m\n"
      "%z = aten::div.Tensor(self=%e, other=%norm)  -- m\n"
      "%z2 = aten::mul.Tensor(self=%z, other=%e)  -- m\n"
      "%mean = aten::mean.dim(self=%z2, dim=[0], keepdim=true)  -- m\n"
      "%wide = aten::expand(self=%mean, size=[4, 8])  -- m\n"
      "%q = aten::sub.Tensor(self=%z2, other=%wide, alpha=1)  -- m\n"
      "%p = aten::square(self=%q)  -- m\n"
      "%loss = aten::mean(self=%p)\noutput %loss\noutput { \"top\" = %norm }\n");
}

std::string difference(const Outcome& want, const Outcome& got, double tolerance) {
  for (size_t k = 0; k < want.losses.size(); ++k)
    if (!(std::abs(want.losses[k] - got.losses[k]) <=
          tolerance * std::max(1.0, std::abs(want.losses[k]))))
      return fmt::format("loss {}: {}, not {}", k, got.losses[k], want.losses[k]);
  for (const auto& [kind, a, b] : {std::tuple("gradient", &want.gradients, &got.gradients),
                                   std::tuple("buffer", &want.buffers, &got.buffers)}) {
    for (const auto& [name, array] : *b)
      if (!a->contains(name) && largest(array) != 0)
        return fmt::format("{} {} should not be there", kind, name);
    for (const auto& [name, array] : *a) {
      const auto it = b->find(name);
      const double off = it == b->end() ? largest(array) : largest_difference(array, it->second);
      if (!(off <= tolerance * std::max(1.0, largest(array))))
        return fmt::format("{} {} is off by {}", kind, name, off);
    }
  }
  for (size_t k = 0; k < want.results.size(); ++k)
    for (const Tensors& named : got.results[k])
      for (const auto& [name, array] : want.results[k].at(0)) {
        const double off = largest_difference(array, named.at(name));
        if (!(off <= tolerance * std::max(1.0, largest(array))))
          return fmt::format("result {} of micro-batch {} is off by {}", name, k, off);
      }
  return {};
}

std::string miscounted(const Programs& programs, const Outcome& got) {
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const lower::Program& program = programs.ranks[r].program;
    const Measured& measured = got.ranks[r];
    std::map<std::string, int64_t> sent, calls;
    for (const lower::Traffic& t : lower::traffic(program)) {
      const std::string key = fmt::format("{} {} {}", t.segment, t.op, t.ranks);
      const auto runs = measured.runs.find(t.segment);
      const int64_t times = t.segment == "step"           ? 1
                            : runs == measured.runs.end() ? 0
                                                          : runs->second;
      sent[key] += t.bytes * times;
      calls[key] += t.calls * times;
    }
    const auto spelled = [](const auto& all) {
      std::string text;
      for (const auto& [key, n] : all)
        if (n != 0) text += fmt::format("{}: {}; ", key, n);
      return text;
    };
    if (spelled(sent) != spelled(measured.sent))
      return fmt::format("rank {} sends {}, not {}", r, spelled(measured.sent), spelled(sent));
    if (spelled(calls) != spelled(measured.calls))
      return fmt::format("rank {} calls {}, not {}", r, spelled(measured.calls), spelled(calls));
  }
  return {};
}

std::string unmeasured(const Programs& programs, const Outcome& got) {
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const lower::Program& program = programs.ranks[r].program;
    const Measured& measured = got.ranks[r];
    // Where a rank runs several stages, a micro-batch does not go through its segments in order.
    if (program.segments.size() > 3) continue;
    const lower::Memory memory = lower::memory(program);
    if (memory.peak != measured.peak)
      return fmt::format("rank {} takes {} bytes at most, not {}", r, measured.peak, memory.peak);
    if (program.segments.size() == 2 && memory.saved != measured.saved)
      return fmt::format("rank {} keeps {} bytes, not {}", r, measured.saved, memory.saved);
  }
  return {};
}

}  // namespace nns::test
