#include "base/error.h"
#include "job/parse.h"
#include "job/resolve.h"
#include "job/schema.h"

#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include <cstdlib>

using namespace nns;
using namespace nns::job;
using Kind = Value::Kind;

namespace {

// "message | hint" of the error that `f` raises, or "".
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(e.exit_code() == 2);
    return e.message() + (e.hint().empty() ? "" : " | " + e.hint());
  }
  return "";
}

constexpr const char* kJob =
    "model: my.net\n"
    "dataset: { type: my.data, train_args: { n: 3 } }\n"
    "optimizer: { type: adamw, args: { lr: 1e-3, betas: [0.9, 0.95] } }\n"
    "max_train_steps: 10\n";

Value complete(const std::string& yaml, const std::vector<std::string>& changes = {}) {
  Value root = parse_yaml(yaml, "job.yaml");
  for (const auto& c : changes) apply(parse_override(c), root);
  resolve(root, {"layers", "width"});
  return root;
}

const Value& at(const Value& root, const std::string& path) {
  const Value* v = &root;
  for (const auto& part : split_path(path)) {
    v = v->is(Kind::list) ? &v->items.at(std::stoul(part)) : v->find(part);
    REQUIRE(v != nullptr);
  }
  return *v;
}

}  // namespace

TEST_CASE("scalars are read by YAML 1.2 with 1e-3 a number") {
  CHECK(scalar("1e-3").number == 1e-3);
  CHECK(scalar("-2.").number == -2);
  CHECK(scalar(".5").number == 0.5);
  CHECK(scalar("+7").number == 7);
  CHECK(scalar("true").boolean);
  CHECK(scalar("~").is(Kind::null));
  for (const char* text : {"yes", "no", "on", "1e", "e3", ".", "1.2.3", "0x10", "nan", "inf", "-"})
    CHECK(scalar(text).is(Kind::text));
}

TEST_CASE("a number is spelled so that it reads back as the same number") {
  rc::check([](double x) {
    if (!std::isfinite(x)) return;
    RC_ASSERT(scalar(number_text(x)).number == x);
  });
}

TEST_CASE("the nearest name") {
  const std::vector<std::string> names{"max_train_steps", "max_epochs", "optimizer.clip_gnorm"};
  CHECK(nearest("max_trian_steps", names) == "max_train_steps");
  CHECK(nearest("clip_gnorm", names) == "optimizer.clip_gnorm");
  CHECK(nearest("banana", names).empty());
}

TEST_CASE(
    "defaults are filled in and the file goes before them, the command line before the file") {
  const Value job = complete(kJob, {"optimizer.args.lr=3e-4", "checkpoint.save_dir=2024"});
  CHECK(at(job, "model.type").text == "my.net");
  CHECK(at(job, "model.args").is(Kind::map));
  CHECK(at(job, "micro_batch_size").number == 1);
  CHECK(at(job, "optimizer.args.lr").number == 3e-4);
  CHECK(at(job, "checkpoint.save_dir").text == "2024");
  CHECK(at(job, "checkpoint.every_n_epochs").number == 1);
  CHECK(job.find("lr_scheduler") == nullptr);
}

TEST_CASE("every default of the schema has the type that the schema says") {
  // resolve checks defaults as it checks what people write
  CHECK(error_of([] {
          complete(std::string(kJob) + "lr_scheduler: cosine\nhook: h\nlog: [jsonl]\n");
        }) == "");
}

TEST_CASE("overrides name list items from 0, append, delete and delete before setting") {
  const Value job = complete(kJob, {"optimizer.args.betas.1=0.99", "optimizer.args.betas.2=7",
                                    "dataset.train_args!", "dataset.train_args.m=[1, {a: b}]"});
  CHECK(at(job, "optimizer.args.betas.1").number == 0.99);
  CHECK(at(job, "optimizer.args.betas.2").number == 7);
  CHECK(at(job, "dataset.train_args").fields.size() == 1);
  CHECK(at(job, "dataset.train_args.m.1.a").text == "b");
  CHECK(error_of([] { complete(kJob, {"optimizer.args.betas.5=1"}); }) ==
        "[job.override] command line, optimizer.args.betas.5: no item '5' in a list of 2; items "
        "count from 0");
  CHECK(error_of([] {
          complete(kJob, {"max_train_steps.a=1"});
        }).find("'max_train_steps' is the number 10") != std::string::npos);
  CHECK(error_of([] { parse_override("seed"); }) ==
        "[job.override] 'seed' sets nothing | write key=value to set a key, key! to delete one");
  CHECK(error_of([] { parse_override("a..b=1"); }) ==
        "[job.override] 'a..b=1' has an empty name in its key");
}

TEST_CASE("an override into a component by name keeps the name") {
  const Value job = complete(kJob, {"model.args.width=8"});
  CHECK(at(job, "model.type").text == "my.net");
  CHECK(at(job, "model.args.width").number == 8);
}

TEST_CASE("wrong keys and values are named with their place") {
  const auto wrong = [](const std::string& more) {
    return error_of([&] { complete(kJob + more); });
  };
  CHECK(wrong("max_epoch: 3\n") ==
        "[job.key] job.yaml:5:1: unknown key 'max_epoch' | did you mean 'max_epochs'?");
  CHECK(wrong("checkpoint:\n  save_dirr: x\n") ==
        "[job.key] job.yaml:6:3: unknown key 'checkpoint.save_dirr' | did you mean "
        "'checkpoint.save_dir'?");
  CHECK(wrong("clip_gnorm: 1\n") ==
        "[job.key] job.yaml:5:1: unknown key 'clip_gnorm' | did you mean 'optimizer.clip_gnorm'?");
  CHECK(wrong("layer: 1\n").ends_with("did you mean 'layers'?"));
  CHECK(wrong("seed: 1\nseed: 2\n") ==
        "[job.key] job.yaml:6:1: duplicate key 'seed', first written at job.yaml:5:1");
  CHECK(wrong("micro_batch_size: many\n") ==
        "[job.type] job.yaml:5:1: 'micro_batch_size' is the text 'many'; expected an integer ≥ 1");
  CHECK(wrong("micro_batch_size: -4\n") ==
        "[job.type] job.yaml:5:1: 'micro_batch_size' is the number -4; expected an integer ≥ 1");
  CHECK(wrong("micro_batch_size: 1.5\n") ==
        "[job.type] job.yaml:5:1: 'micro_batch_size' is the number 1.5; expected an integer ≥ 1");
  CHECK(wrong("eager: yes\n") ==
        "[job.type] job.yaml:5:1: 'eager' is the text 'yes'; expected true or false");
  CHECK(wrong("on_nan: go\n") ==
        "[job.type] job.yaml:5:1: 'on_nan' is the text 'go'; expected one of stop | skip");
  CHECK(wrong("device: 3\n") ==
        "[job.type] job.yaml:5:1: 'device' is the number 3; expected a text");
  CHECK(wrong("checkpoint: 3\n") ==
        "[job.type] job.yaml:5:1: 'checkpoint' is the number 3; expected a table");
  CHECK(wrong("lr_scheduler: { interval: epoch }\n")
            .starts_with("[job.key] job.yaml:5:1: 'lr_scheduler' has no type"));
  CHECK(wrong("checkpoint: { every_n_epochs: 1, every_n_train_steps: 2 }\n")
            .find("exclude each other") != std::string::npos);
  CHECK(error_of([] { complete("model: m\ndataset: d\n"); }) ==
        "[job.key] job.yaml:1:1: 'optimizer' is missing | add optimizer with a type: `adamw`, "
        "`adam`, `sgd`, `lion`, `adafactor`, `muon`, `mixed_precision_adamw`, or a module of your "
        "own.");
  CHECK(error_of([] { complete("model: m\ndataset: d\noptimizer: sgd\n"); }) ==
        "[job.end] job.yaml:1:1: the job has no end | give max_train_steps or max_epochs");
  CHECK(
      error_of([] { complete("- 1\n"); }).starts_with("[job.yaml] job.yaml:1:1: a job is a table"));
  CHECK(error_of([] { complete("a: [1\n"); }).starts_with("[job.yaml] job.yaml:2:"));
}

TEST_CASE("$(…) is replaced") {
  ::setenv("NNS_TEST_WIDTH", "48", 1);
  const Value job = complete(std::string(kJob) +
                             "vars: { w: 12, copy: $(vars.w), deep: $(vars.copy) }\n"
                             "name: w$(vars.deep)-$(NNS_TEST_WIDTH)-$\\(x)\n"
                             "seed: $(NNS_TEST_WIDTH)\n");
  CHECK(at(job, "vars.deep").number == 12);
  CHECK(at(job, "name").text == "w12-48-$(x)");
  CHECK(at(job, "seed").number == 48);
  const auto wrong = [](const std::string& more) {
    return error_of([&] { complete(kJob + more); });
  };
  CHECK(wrong("vars: { a: $(vars.b), b: $(vars.a) }\n").find("refers to itself") !=
        std::string::npos);
  CHECK(wrong("name: $(no.such)\n")
            .starts_with(
                "[job.substitute] job.yaml:5:1: no key and no environment variable 'no.such'"));
  CHECK(wrong("name: a$(model)\n").find("is a table; it has no place inside a text") !=
        std::string::npos);
  CHECK(wrong("name: a$(model\n").find("'$(' without ')'") != std::string::npos);
}

TEST_CASE("a resolved job reads back from its text") {
  const Value job = complete(std::string(kJob) + "name: 'it''s: # 3'\nvars: { s: '12', e: '' }\n");
  Value again = parse_yaml(dump(job), "dump");
  resolve(again, {});
  CHECK(dump(again) == dump(job));
  CHECK(at(again, "vars.s").text == "12");
}

TEST_CASE("places of a recipe's literal tables") {
  const Places places = scan_lua(R"(local x = { seed = 1 }
-- return { no = 1 }
local function f() return { inner = 2 } end
return {
  model = function() local a, b = 1, { c = 2 } return b end,
  ['dataset'] = { type = 'd', args = { [[long
text]], k = { 1, 2 } } },
  hook = f { on = 1 }, seed = 3;
  optimizer = nnscaler.opt { lr = 1 },
}
)",
                                 "r.lua");
  CHECK(to_string(places.table) == "r.lua:4");
  const auto line = [&](const char* path) {
    const auto found = places.marks.find(path);
    return found == places.marks.end() ? 0 : found->second.line;
  };
  CHECK(line("model") == 5);
  CHECK(line("dataset") == 6);
  CHECK(line("dataset.args.0") == 6);
  CHECK(line("dataset.args.k.1") == 7);
  CHECK(line("seed") == 8);
  CHECK(line("optimizer") == 9);
  CHECK(line("no") == 0);
  CHECK(line("inner") == 0);
  CHECK(line("hook.on") == 0);
  CHECK(line("model.c") == 0);
}

TEST_CASE("a returned local is followed to its table") {
  const Places places =
      scan_lua("local job = {\n  seed = 1,\n}\njob.name = 'x'\nreturn job\n", "r.lua");
  CHECK(places.marks.at("seed").line == 2);
  CHECK(places.table.line == 5);
}

TEST_CASE("a key written twice in a literal table is an error") {
  CHECK(error_of([] { scan_lua("return {\n  a = { b = 1,\n b = 2 } }", "r.lua"); }) ==
        "[job.key] r.lua:3: duplicate key 'a.b', first written at r.lua:2");
}

TEST_CASE("the scanner ends on any text") {
  rc::check([](const std::string& text) {
    try {
      scan_lua("return {" + text, "r.lua");
    } catch (const Error&) {
    }
  });
}
