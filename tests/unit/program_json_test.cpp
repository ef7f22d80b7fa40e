// Programs as JSON: what is read back is what was written, and damaged bytes are refused by place.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "base/build_id.h"
#include "base/error.h"
#include "codegen/lua.h"
#include "graph/difference.h"
#include "graph/json_text.h"
#include "lower/program_json.h"
#include "plan/builder.h"
#include "support/graph_text.h"
#include "support/models.h"

using namespace nns;
using Json = nlohmann::ordered_json;

namespace {

// loss = sum(relu(x · w + c)), with a constant c and a place in the source for each call.
graph::Graph network() {
  graph::Graph g = test::read_graph(R"(
graph "Net" training
  input     %x "x": float32[2, 4]
  parameter %w "fc.weight": float32[4, 4] grad
  constant  %c "": float32[1] values=0.75
  %y = aten::mm(self=%x, mat2=%w)  -- fc
  %z = aten::add.Tensor(self=%y, other=%c, alpha=1)  -- fc
  %r = aten::relu(self=%z)
  %l = aten::sum(self=%r, dtype=nil)
  output    %l
)");
  for (graph::Node& n : g.nodes) n.loc = {"models/mlp.lua", 10 + n.id};
  return g;
}

// All of it on `devices`, the product cut over its columns; weights in shards where wanted.
lower::Lowered lowered(int devices, int rank, bool sharded) {
  auto g = std::make_shared<const graph::Graph>(network());
  lower::Options options;
  if (devices > 1) {
    plan::Builder builder(g, sharded ? 1 : devices, devices);
    if (!sharded) builder.partition(0, 1, 1, devices);
    if (sharded) builder.zero(plan::Zero::weights);
    for (int id = sharded ? 0 : 1; id < static_cast<int>(g->nodes.size()); ++id)
      builder.replicate(id, sharded ? 1 : devices);
    options.plan = std::make_shared<const plan::Plan>(builder.finish("test"));
    options.rank = rank;
  }
  return lower::lower(*g, options);
}

std::string message_of(const std::string& text) {
  try {
    lower::from_json(text);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::state);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a program read from its JSON is the one that was written") {
  for (const auto& [devices, sharded] : {std::pair{1, false}, {2, false}, {2, true}}) {
    for (int rank = 0; rank < devices; ++rank) {
      const lower::Lowered was = lowered(devices, rank, sharded);
      const std::string text = lower::to_json(was);
      const lower::Lowered is = lower::from_json(text);
      CHECK(lower::to_json(is) == text);
      CHECK(lower::hash(is.program) == lower::hash(was.program));
      CHECK(codegen::to_lua(is.program) == codegen::to_lua(was.program));
      CHECK(lower::groups_of(is.program) == lower::groups_of(was.program));
      REQUIRE(is.program.shares.size() == was.program.shares.size());
      for (size_t i = 0; i < is.program.shares.size(); ++i) {
        CHECK(is.program.shares[i].reduce == was.program.shares[i].reduce);
        CHECK(is.program.shares[i].holders == was.program.shares[i].holders);
        CHECK(is.program.shares[i].zero == was.program.shares[i].zero);
      }
      for (size_t i = 0; i < was.program.slots.size(); ++i) {
        CHECK(is.program.slots[i].whole == was.program.slots[i].whole);
        CHECK(is.program.slots[i].box == was.program.slots[i].box);
      }
      CHECK(is.notes == was.notes);
      CHECK(is.adapters.all == was.adapters.all);
      CHECK(is.adapters.pairs == was.adapters.pairs);
    }
  }
}

TEST_CASE("damaged JSON of a program is refused by place") {
  const Json good = Json::parse(lower::to_json(lowered(2, 0, false)));
  const auto with = [&](const char* pointer, const Json& value) {
    Json j = good;
    j[Json::json_pointer(pointer)] = value;
    return message_of(j.dump());
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(message_of("{"), Contains("[program.from_json] not JSON"));
  CHECK_THAT(message_of("[]"), Contains("program: []; expected an object"));
  CHECK_THAT(with("/kind", "nnscaler.plan"), Contains("program.kind: \"nnscaler.plan\""));
  CHECK_THAT(with("/format", 99), Contains("format 99 is newer"));
  CHECK_THAT(with("/more", 1), Contains("expected 28 fields"));
  CHECK_THAT(with("/rank", 2), Contains("rank 2 of 2"));
  CHECK_THAT(with("/slots/0/shape/0", -1), Contains("program.slots[0].shape"));
  CHECK_THAT(with("/slots/0/shape", Json::array({1 << 30, 1 << 30, 1 << 30})),
             Contains("expected a shape"));
  CHECK_THAT(with("/slots/1/box/1/1", 9), Contains("program.slots[1].box"));
  CHECK_THAT(with("/parameters/0", 1000), Contains("slot 1000 of"));
  CHECK_THAT(with("/parameters/0", 0), Contains("slot 0 has the role input; expected parameter"));
  CHECK_THAT(with("/constant_data/0", "00"), Contains("constant 0 has 1 bytes"));
  CHECK_THAT(with("/shares", Json::array()), !Contains("shares"));
  CHECK_THAT(with("/shares/0/reduce", Json::array({7})), Contains("a share of rank 7 of 2"));
  CHECK_THAT(with("/segments", Json::array()), Contains("no segment"));
  CHECK_THAT(with("/segments/0/inputs/0", 77), Contains("slot 77 of"));
  CHECK_THAT(with("/segments/0/instrs/0/outs/0", 77), Contains("slot 77 of"));
  CHECK_THAT(with("/segments/0/instrs/0/kind", "jump"), Contains("instrs[0].kind: \"jump\""));
}

// A program of two ranks with blocks, shards and a step: each thing that its
// parts say of each other, and the last value that still fits.
TEST_CASE("a program whose parts disagree is refused by what they say") {
  const test::GraphPtr graph = test::perceptrons(3);
  plan::Builder b(graph, 1, 2);
  for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
  b.zero(plan::Zero::weights);
  lower::Options options;
  options.plan = std::make_shared<const plan::Plan>(b.finish("test"));
  const Json good = Json::parse(lower::to_json(lower::lower(*graph, options)));
  const lower::Program right = lower::from_json(good.dump()).program;
  const lower::Segment& backward = right.segments[1];
  REQUIRE(backward.blocks.size() == 3);
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json j = good;
    j[Json::json_pointer(pointer)] = value;
    return message_of(j.dump());
  };
  const auto slots = right.slots.size(), count = backward.instrs.size(), sets = right.sets.size();
  const auto said = [](const std::string& what) { return "[program.from_json] " + what; };

  CHECK(with("/world", 0) == said("rank 0 of 0"));
  CHECK(with("/world", 3).empty());
  Json j = good;
  j["shares"].erase(0);
  CHECK(message_of(j.dump()) ==
        said(fmt::format("{} parameters with shares for {}", right.parameters.size(),
                         right.shares.size() - 1)));
  CHECK(with("/shares/0/reduce", Json::array({2})) == said("a share of rank 2 of 2"));
  CHECK(with("/shares/0/reduce", Json::array({1})).empty());
  CHECK(with("/shares/0/over/1", 2) == said("a share of rank 2 of 2"));
  const std::string unfit =
      said(fmt::format("shards of {} that do not fit it", right.slot(right.parameters[0]).name));
  CHECK(with("/shares/0/zero", 4) == unfit);
  CHECK(with("/shares/0/over", Json::array()) == unfit);
  CHECK(with("/shares/0/dim", right.slot(right.parameters[0]).type.shape.size()) == unfit);
  CHECK(with("/shares/0/owner", 2) == unfit);
  CHECK(with("/shares/0/owner", 1).empty());
  CHECK(with("/shares/0/length", right.slot(right.parameters[0]).type.shape[0] - 1) == unfit);
  CHECK(with("/shares/0/length", right.slot(right.parameters[0]).type.shape[0]).empty());
  CHECK(with("/shares/0/zero", 1) == unfit);  // at level 1 the piece used here is as long as it
  CHECK(with("/shares/0/holders", -1) == said("program.shares[0].holders: -1; expected 0 or more"));

  CHECK(with("/sets/0/ranks", Json::array({2})) == said("a sum of rank 2 of 2"));
  CHECK(with("/sets/0/over", Json::array({2})) == said("a sum of rank 2 of 2"));
  CHECK(with("/sets/0/parameters/0", right.segments[0].inputs[0])
            .ends_with("has the role input; expected parameter"));
  CHECK(with("/step/0/set", sets) ==
        said(fmt::format("{} of set {} of {}", name_of(right.step[0].kind), sets, sets)));
  CHECK(with("/step/0/ranks", Json::array({2})) == said("a sum of rank 2 of 2"));
  CHECK(with("/schedule/0/stage", 1) == said("F of stage 1 without a segment"));
  CHECK(with("/schedule/0/kind", "W") == said("W of stage 0 without a segment"));
  CHECK(with("/schedule/0/kind", "X") ==
        said("program.schedule[0].kind: \"X\"; expected F, B or W"));
  CHECK(with("/seeds", Json::array({Json::array({"x", slots})})) ==
        said(fmt::format("slot {} of {}", slots, slots)));
  CHECK(with("/seeds", Json::array({Json::array({"x", slots - 1})})).empty());
  CHECK(with("/input_gradients", Json::array({Json::array({"x", slots})})) ==
        said(fmt::format("slot {} of {}", slots, slots)));
  for (const char* list : {"inputs", "outputs", "saved_in", "saved_out"})
    CHECK(with(std::string("/segments/1/") + list, Json::array({slots})) ==
          said(fmt::format("slot {} of {}", slots, slots)));

  const auto at = [&](lower::InstrKind kind) {
    for (size_t i = 0; i < count; ++i)
      if (backward.instrs[i].kind == kind) return fmt::format("/segments/1/instrs/{}", i);
    throw std::runtime_error("no such instruction");
  };
  const std::string call = at(lower::InstrKind::call), sum = at(lower::InstrKind::accumulate);
  CHECK(with(call + "/target", 0) == said("call of slot 0"));
  CHECK(with(call + "/op", "") == said("a call of nothing"));
  CHECK(with(call + "/outs", Json::array({slots})) ==
        said(fmt::format("slot {} of {}", slots, slots)));
  CHECK(with(call + "/into", slots) == said(fmt::format("slot {} of {}", slots, slots)));
  CHECK(with(sum + "/target", slots) == said(fmt::format("slot {} of {}", slots, slots)));
  j = good;
  j[Json::json_pointer(sum)].erase("target");
  CHECK(message_of(j.dump()) == said("accumulate of slot -1"));
  CHECK(with(call + "/place", Json::array({"a"})).ends_with("expected a file and a line"));

  const auto& blocks = backward.blocks;
  const auto block = [&](size_t i, size_t first, size_t end) {
    Json changed = good;
    Json& run = changed["segments"][1]["blocks"][i];
    run["first"] = first;
    run["last"] = end;
    return message_of(changed.dump());
  };
  CHECK(block(2, blocks[2].first, count).empty());
  CHECK_FALSE(block(2, blocks[2].first, count + 1).empty());
  CHECK(block(1, blocks[0].last, blocks[1].last).empty());
  CHECK(block(1, blocks[0].last - 1, blocks[1].last) ==
        said(fmt::format("block {} from {} to {} of backward", blocks[1].path, blocks[0].last - 1,
                         blocks[1].last)));
  CHECK_FALSE(block(1, blocks[1].last, blocks[1].last - 1).empty());
  const auto loops = [&](size_t a, size_t size, size_t turns, size_t then) {
    return with("/segments/1/loops", {{{"first", a}, {"size", size}, {"count", turns}},
                                      {{"first", then}, {"size", 1}, {"count", 1}}});
  };
  CHECK(loops(0, 2, 3, 6).empty());
  CHECK(loops(0, 2, 3, 5) == said("a loop from 5 to 6 of backward"));
  CHECK(loops(0, 1, 1, count - 1).empty());
  CHECK_FALSE(loops(0, 1, 1, count).empty());
  const auto sums = [&](size_t after, size_t set) {
    return with("/segments/1/sums", {{{"after", after}, {"set", set}}});
  };
  CHECK(sums(count, sets - 1).empty());
  CHECK(sums(count + 1, 0) ==
        said(fmt::format("sums up to set 0 after {} of backward", count + 1)));
  CHECK(sums(0, sets) == said(fmt::format("sums up to set {} after 0 of backward", sets)));

  const auto box = [&](int64_t start, int64_t stop) {
    Json changed = good;
    Json& slot = changed["slots"][static_cast<size_t>(right.parameters[0])];
    const Shape& shape = right.slot(right.parameters[0]).type.shape;
    slot["whole"] = shape;
    slot["box"] = Json::array();
    for (int64_t length : shape) slot["box"].push_back({0, length});
    slot["box"][0] = {start, stop};
    return message_of(changed.dump());
  };
  const int64_t rows = right.slot(right.parameters[0]).type.shape[0];
  CHECK(box(0, rows).empty());
  CHECK_FALSE(box(1, rows + 1).empty());
  CHECK_FALSE(box(-1, rows - 1).empty());
  CHECK_FALSE(box(1, rows).empty());
  CHECK(with("/graph", "0123456789abcdeg").ends_with("expected 16 hexadecimal digits"));
  CHECK(with("/graph", "0123456789abcde").ends_with("expected 16 hexadecimal digits"));
  CHECK(with("/graph", "0123456789abcdef").empty());
  CHECK_FALSE(with("/slots/0/shape", Json::array({int64_t{1} << 60, 2})).empty());
}

// Every number and every text of a program in turn becomes something else: nothing may crash, and
// what is accepted can be asked for all that a run asks.
TEST_CASE("no damaged JSON of a program crashes its reader") {
  const Json good = Json::parse(lower::to_json(lowered(2, 1, false)));
  const Json flat = good.flatten();
  int refused = 0;
  for (const auto& [pointer, value] : flat.items()) {
    for (const Json& other : {Json(-1), Json(7), Json(1e300), Json("x"), Json(nullptr),
                              Json(int64_t{1} << 40), Json::array({3}), Json::object()}) {
      Json j = good;
      j[Json::json_pointer(pointer)] = other;
      try {
        const lower::Lowered read = lower::from_json(j.dump());
        lower::hash(read.program);
        lower::groups_of(read.program);
      } catch (const std::exception&) {
        ++refused;
      }
    }
  }
  CHECK(refused > static_cast<int>(flat.size()) * 3);
}

TEST_CASE("a graph tells where it differs first from another") {
  const graph::Graph before = network();
  CHECK(graph::difference(before, network()) == std::nullopt);
  graph::Graph moved = network();
  moved.nodes[2].loc.line = 99;
  CHECK(graph::difference(before, moved) == std::nullopt);
  graph::Graph other = network();
  other.nodes[2].op = "aten::tanh";
  CHECK(graph::difference(before, other) == "mlp.lua:12: aten::tanh in place of aten::relu");
  graph::Graph wide = network();
  wide.values[1].type.shape = {4, 5};
  CHECK(graph::difference(before, wide) ==
        "mlp.lua:10: aten::mm of fc has other arguments or results");
  graph::Graph more = network();
  more.nodes.push_back(more.nodes[2]);
  CHECK(graph::difference(before, more) == "mlp.lua:12: aten::relu is added");
  CHECK(graph::difference(more, before) == "mlp.lua:12: aten::relu is gone");
  graph::Graph unused = network();
  unused.values.push_back({7, {{3}, DType::f32}, graph::Role::parameter, true, "spare", -1, {}});
  unused.parameters.push_back(7);
  CHECK(graph::difference(before, unused) == "parameter spare float32[3] in place of nothing");
  graph::Graph result = network();
  result.outputs.push_back({graph::ValueRef{5}});
  CHECK(graph::difference(before, result) == "what forward returns");
}

TEST_CASE("a build has an id") {
  CHECK(build_id().size() >= 16);
  CHECK(build_id().find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(build_id() == build_id());
}

namespace {

// The same value as the library has it.
Json tree_of(const graph::Item& item) {
  if (item.is_null()) return nullptr;
  if (item.is_boolean()) return item.is_true();
  if (item.is_string()) return item.string();
  if (item.is_list() || item.is_object()) {
    Json out = item.is_list() ? Json::array() : Json::object();
    graph::Item entry = item.first();
    for (size_t i = 0; i < item.size(); ++i, entry = entry.next()) {
      if (item.is_list())
        out.push_back(tree_of(entry));
      else
        out.emplace(entry.key(), tree_of(entry));
    }
    return out;
  }
  if (const auto number = item.integer()) return *number;
  return item.real().value();
}

bool reads(const std::string& text) {
  try {
    graph::JsonText read(text, 64);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

TEST_CASE("a JSON text is read as the library reads it, and refused where that refuses it") {
  const std::vector<std::string> texts = {
      R"({"a": [1, -2, 3.5e-3, true, false, null], "b\u00e9\n": {"": "\u20ac \\ \" /"}, "c": [[], {}]})",
      R"( [ "plain", "é", 0, -0.25, 9223372036854775807, 1E+2 ] )",
      lower::to_json(lowered(2, 1, true))};
  for (const std::string& text : texts) {
    const graph::JsonText read(text, 64);
    CHECK(tree_of(read.root()) == Json::parse(text));
    CHECK(read.root().shown() == Json::parse(text).dump());
  }
  std::mt19937 random(3);
  const std::string bytes = "[]{}\",:\\ 01-.tn\n\xc3\xff";
  int accepted = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string text = texts[static_cast<size_t>(trial) % 2];
    for (uint32_t edits = 1 + random() % 2; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, 1 + random() % 3);
      else
        text[at] = bytes[random() % bytes.size()];
    }
    INFO(text);
    CHECK(reads(text) == Json::accept(text));
    accepted += Json::accept(text);
  }
  CHECK(accepted > 100);
  CHECK_FALSE(reads("\xef\xbb\xbf[]"));
  CHECK_FALSE(reads(std::string(65, '[') + std::string(65, ']')));
  CHECK(reads(std::string(64, '[') + std::string(64, ']')));
}
