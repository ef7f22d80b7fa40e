// The table of keys. A row here is the only place where a key is declared: name, type, default,
// unit, meaning, and whether generated programs depend on it.
#include "job/schema.h"

#include <fmt/format.h>

#include "job/backends.h"
#include "job/value.h"

namespace nns::job {
namespace {

using enum Type;

// clang-format off
constexpr Key kKeys[] = {
  // --- what is trained
  {"model", component, kRequired, "", "The model: its `forward` takes one sample and returns the loss first.", true},
  {"model.type", text, kRequired, "", "`gpt`, `mlp`, or a module of your own.", true},
  {"model.args", map, "{}", "", "Arguments of the constructor.", true},
  {"model.parallel_modules", components, "", "", "Classes of modules inside of the model that are made parallel; the rest runs as it is written, on every rank. Without them the whole model is one program.", true},
  {"model.parallel_modules.type", text, kRequired, "", "The class, as a module of your own returns it.", true},
  {"model.parallel_modules.args", map, "", "", "Arguments of its constructor, where one is made to be traced.", true},
  {"model.parallel_modules.forward_args_gen_fn", function, kRequired, "", "`function(job)` that returns arguments of its `forward` to trace with: a list, or a table by name.", true},
  {"model.parallel_modules.compute_config", map, "", "", "Keys of compute_config that differ for it.", true},
  {"model.parallel_modules.pas_policy", function, "", "", "Its policy; that of the job if not given.", true},
  {"model.parallel_modules.pas_config", map, "", "", "Keys of its policy.", true},
  {"model.parallel_modules.gen_savedir", text, "", "folder", "Where its programs are written; that of the job if not given."},
  {"model.parallel_modules.gen_reuse", choice, "", "", "As of the job.", false, kUnbounded, "auto match override moo graph"},
  {"model.parallel_modules.broadcast_strategy", choice, "", "", "As of the job.", false, kUnbounded, "none code no_weights all"},
  {"model.parallel_modules.instance_name", text, "", "", "Tells its programs from those of another job with the same class."},
  {"model.parallel_modules.tracing_from_weights", text, "", "file or folder", "Weights that each of its modules starts with."},
  {"model.parallel_modules.tracing_from_weights_prefix", text, "", "", "What stands before its names there: `model.encoder`."},
  {"tracing_from_weights", text, "", "file or folder", "Weights that the model has when it is traced and trained first: another name of checkpoint.init_from."},
  {"forward_args", function, "", "", "`function(sample)` that returns the arguments of `forward`; without it the sample is the one argument.", true},
  {"dataset", component, kRequired, "", "The samples to learn from."},
  {"dataset.type", text, kRequired, "", "`characters`, `tokens`, `random_samples`, or a module of your own."},
  {"dataset.args", map, "{}", "", "Arguments of one constructor call that gives both training and validation data."},
  {"dataset.train_args", map, "", "", "Arguments of the constructor for training data."},
  {"dataset.val_args", map, "", "", "Arguments of the constructor for validation data; without them there is no evaluation."},
  {"dataset.test_args", map, "", "", "Arguments of the constructor for test data, evaluated once, when training is done."},
  {"dataloader", component, "", "", "How samples become micro-batches; batch sizes are those of the job."},
  {"dataloader.type", text, "", "", "A function (options) that returns a loader, in place of the library's own."},
  {"dataloader.train_args", map, "", "", "Options for training data: `num_workers`, `prefetch`, `shuffle`, `drop_last`, `collate_fn`, or those of your own loader."},
  {"dataloader.val_args", map, "", "", "Options for validation data; those of training, without shuffle and drop_last, if not given."},
  {"dataloader.test_args", map, "", "", "Options for test data; those of validation if not given."},
  {"dataset_sampler", component, "", "", "In which order samples are read: an object with `index(epoch, position, size)`."},
  {"dataset_sampler.type", text, "", "", "A function (options) that returns a sampler, in place of the library's own."},
  {"dataset_sampler.train_args", map, "", "", "Options for training data: `seed`, `shuffle`, or those of your own sampler."},
  {"dataset_sampler.val_args", map, "", "", "Options for validation data; none if not given."},
  {"dataset_sampler.test_args", map, "", "", "Options for test data; those of validation if not given."},
  {"dummy_sample_gen_fn", function, "", "", "`function(job)` that returns a micro-batch to trace with; the first of the training data if not given."},
  {"init_module", names, "", "", "Modules to `require` before anything else (registered operators, …)."},
  {"init_env_fn", function, "", "", "`function(trainer)`, called on every rank before anything is made."},
  {"vars", map, "", "", "Values of your own, for `$(vars.name)` elsewhere."},

  // --- how long, in what portions
  {"micro_batch_size", integer, "1", "samples", "Samples of one forward and backward pass.", true, 1},
  {"global_batch_size", integer, "", "samples", "Samples of one optimizer step; micro_batch_size · grad_accumulation_steps · scale units if not given.", false, 1},
  {"grad_accumulation_steps", integer, "", "micro-batches", "Micro-batches of one optimizer step, of each scale unit; global_batch_size / (micro_batch_size · scale units) if not given.", false, 1},
  {"global_batch_schedule", map, "", "", "A list of { after_steps, global_batch_size }: from so many steps on, steps have so many samples."},
  {"max_epochs", integer, "", "epochs", "End of training; one of max_epochs and max_train_steps is needed, the earlier end counts.", false, 1},
  {"max_train_steps", integer, "", "steps", "End of training in optimizer steps.", false, 1},
  {"stop_after_steps", integer, "", "steps", "Stops this run early without changing the horizon of the schedule.", false, 1},
  {"val_every_n_train_steps", integer, "", "steps", "Evaluates each n steps.", false, 1},
  {"val_every_n_epochs", integer, "1", "epochs", "Evaluates each n epochs.", false, 1},
  {"max_val_steps", integer, "", "steps", "Evaluates on at most so many global batches; all of the validation data if not given.", false, 1},

  // --- optimizer
  {"optimizer", component, kRequired, "", "What changes the weights."},
  {"optimizer.type", text, kRequired, "", "`adamw`, `adam`, `sgd`, `lion`, `adafactor`, `muon`, `mixed_precision_adamw`, or a module of your own."},
  {"optimizer.args", map, "{}", "", "Arguments of the optimizer: `lr`, `betas`, `weight_decay`, …"},
  {"optimizer.clip_gnorm", number, "0", "", "Greatest norm of all gradients together; 0 only measures it.", false, 0},
  {"optimizer.loss_reduction", choice, "mean", "", "What a step says of the losses of its micro-batches. mean: their mean, each weighted by its tokens or samples; sum: their sum; per-token-mean: their sum divided by all tokens, of losses that are sums over tokens.", false, kUnbounded, "mean sum per-token-mean"},
  {"optimizer.grad_reduction", choice, "mean", "", "The same of gradients.", false, kUnbounded, "mean sum per-token-mean"},
  {"optimizer.aggregate_outputs_fn", function, "", "", "`function(outputs)` of what forward returned for the micro-batches of this rank: a table of numbers, which are summed over the ranks. `loss_sum`, `num_batches` and `num_tokens` stand in for the trainer's own."},
  {"lr_scheduler", component, "", "", "How the learning rate changes; constant if not given."},
  {"lr_scheduler.type", text, kRequired, "", "`cosine`, `linear`, `constant`, or a module of your own."},
  {"lr_scheduler.args", map, "{}", "", "Arguments of the schedule: `warmup_steps`, `min_lr`, …"},
  {"lr_scheduler.interval", choice, "step", "", "What the schedule counts.", false, kUnbounded, "step epoch"},
  {"on_nan", choice, "stop", "", "When the loss is not a number: stop, or skip the step and go on.", false, kUnbounded, "stop skip"},

  // --- where and how it computes
  {"device", text, "cpu", "", "`cpu`, `cuda` or `cuda:N`.", true},
  {"threads", integer, "", "threads", "Threads of one operator; all cores if not given.", false, 1, "", 4096},
  {"precision", words, "none", "", "Types of parameters, buffers, inputs and gradients, see docs/precision.md: `bf16` casts them (bf16-true), `bf16-mixed` keeps float32 and casts for products (autocast); `none` leaves them as the model made them. A table names `parameter`, `buffer`, `input`, `gradient` and `reduce` apart.", true, kUnbounded, "none fp64 fp32 bf16 fp16 64-true 32-true bf16-true 16-true bf16-mixed 16-mixed"},
  {"forbid_kernels", names, "", "", "Kernels that no matrix product may use: `tiles` (ours) or `aten`. What is faster was measured by `nnscaler profile`; without that a rule says.", true},
  {"eager", boolean, "false", "", "Trains with LibTorch's autograd instead of a generated program: the reference."},
  {"seed", integer, "0", "", "Seed of everything random.", false, 0},
  {"deterministic", boolean, "true", "", "Operators that give the same bits in every run; false lets a GPU take faster ones."},
  {"run_mode", choice, "run", "", "`compile` writes the programs of all ranks and ends, as `nnscaler compile` does.", false, kUnbounded, "run compile"},
  {"gen_savedir", text, "./.nnscaler", "folder", "Where generated programs are written."},
  {"instance_name", text, "", "", "Tells programs of one class with different settings apart: part of their folder's name."},
  {"gen_reuse", choice, "auto", "", "`match`: use a program whose key agrees; `override`: always write anew; `moo`: match or override; `graph`: take the traced graph of before, write the program anew; `auto`: moo.", false, kUnbounded, "auto match override moo graph"},
  {"max_programs", integer, "16", "programs", "Programs of one model that are kept, one for each shape of its inputs (training and evaluation each); a further shape takes the place of the one used longest ago.", false, 1},
  {"broadcast_strategy", choice, "code", "", "What rank 0, which writes the programs, sends to the other ranks: `none`: nothing, they read the files of a shared disk; `code` and `no_weights`: the programs; `all`: its first weights too.", false, kUnbounded, "none code no_weights all"},

  // --- several devices
  {"compute_config", group, "", "", "Devices of a plan and of the run."},
  {"compute_config.plan_ngpus", integer, "", "devices", "Devices that one plan spans (a scale unit). If not given: under `autodist` the fewest that fit, 1 under `dp` and `fsdp`, else the number of ranks.", true, 1, "", 65536},
  {"compute_config.runtime_ngpus", integer, "", "ranks", "All ranks, a multiple of plan_ngpus: each plan_ngpus of them train on samples of their own. The number of ranks if not given.", true, 1, "", 65536},
  {"compute_config.reducer_bucket_cap_mb", number, "25", "MB", "Gradients are summed over ranks in buckets of at most this size.", true, 0.001, "", 1e6},
  {"compute_config.use_zero", integer, "", "", "What rests in shards over the scale units: 0 nothing, 1 (or `true`) the optimizer's state, 2 gradients too, 3 weights too, as under `fsdp`. What the policy says if not given; see docs/memory.md.", true, 0, "false true", 3},
  {"compute_config.zero_ngroups", integer, "", "groups", "Groups of scale units: shards lie inside of each, sums go over all; a divisor of the number of scale units. One if not given.", true, 1, "", 65536},
  {"compute_config.zero_use_reduce_scatter", boolean, "", "", "With use_zero=1, gradients are summed into shards: less is sent, and only shards are kept once they are summed.", true},
  {"compute_config.zero_param_level_sharding", boolean, "", "", "With use_zero 1 or 2, each weight's optimizer state lies undivided on one rank. Weights whose optimizer needs that (`muon`, `adafactor`) have it anyway.", true},
  {"compute_config.memory_gb", number, "", "GB", "Memory that the tensors of a rank may take: a run that is predicted to take more is refused before its first step. What the machine or its container has, for all ranks of a host together, if not given.", false, 0.000001, "", 1e6},
  {"compute_config.zero_offload", choice, "none", "", "What rests in memory of the host and is updated there: `optimizer`: the optimizer's state, with masters; `all`: gradients too.", false, kUnbounded, "none optimizer all"},
  {"compute_config.use_async_reducer", boolean, "true", "", "Gradients are summed over ranks beside backward, as soon as they are there; false: after it."},
  {"compute_config.user_config", map, "", "", "Values of your own that programs depend on: where one differs, they are written anew.", true},
  {"compute_config.use_end2end", boolean, "true", "", "The model is trained as a whole. Parts of a model are model.parallel_modules."},
  {"compute_config.inference_only", boolean, "false", "", "No backward: for `parallelize`; a job trains."},
  {"compute_config.constant_folding", boolean, "false", "", "Values that depend on constants alone are computed while tracing: here always, where they are numbers of Lua; tensors never."},
  {"compute_config.trace_strategy", text, "", "", "Where the model is run to be traced: here nowhere, since tracing needs no data."},
  {"pas_policy", function, "autodist", "", "What is split and where it runs: a name of docs/policies.md (`autodist`, `dp`, `fsdp`, `megatron`, …), a module of your own, or `function(graph, cfg)`.", true},
  {"pas_config", map, "{}", "", "Keys of the policy.", true},

  {"elastic", group, "", "", "Runs on fewer ranks than the job says."},
  {"elastic.min_units", integer, "", "scale units", "With at least so many of its scale units a run starts, or goes on: they share the samples of a step. All are needed if not given.", false, 1, "", 65536},

  {"comm", group, "", "", "How ranks talk; see docs/launch.md."},
  {"comm.backend", choice, "auto", "", "`local`: threads of one process; `auto`: mpi under mpirun and for `-n`, gloo under torchrun, nccl where ranks compute on GPUs.", false, kUnbounded, kBackendChoices.data()},
  {"comm.timeout_s", number, "600", "s", "A call that waits longer than this for other ranks is given up.", false, 0.001, "", 1e9},
  {"comm.join_timeout_s", number, "300", "s", "How long ranks wait for each other when they start.", false, 0.001, "", 1e9},
  {"comm.heartbeat_s", number, "1", "s", "Ranks tell each other that they live so often; one that is silent ten times as long is lost. 0: nobody watches.", false, 0, "", 1e6},

  // --- checkpoints
  {"checkpoint", group, "", "", "Saving and resuming."},
  {"checkpoint.save_dir", text, "./checkpoints", "folder", "Where checkpoints are written."},
  {"checkpoint.no_save", boolean, "false", "", "Saves nothing."},
  {"checkpoint.save_last", boolean, "true", "", "Keeps `last` pointing to the newest checkpoint."},
  {"checkpoint.save_best", boolean, "true", "", "Keeps `best` pointing to the one with the least validation loss."},
  {"checkpoint.symlink_best_and_last", boolean, "true", "", "Whether they are links; else copies, for file systems without links."},
  {"checkpoint.async", boolean, "false", "", "Writes from a copy in memory while training goes on. The copy takes as much memory as the states that a rank keeps."},
  {"checkpoint.grace_s", integer, "", "s", "How long a run may take to end after SIGTERM, as the system that sends it says. It saves after the step that it is in; where time runs out before, it ends as it is and names the newest checkpoint.", false, 1, "", 1e6},
  {"checkpoint.every_n_train_steps", integer, "", "steps", "Saves each n steps; excludes every_n_epochs.", false, 1},
  {"checkpoint.every_n_epochs", integer, "", "epochs", "Saves each n epochs; 1 if neither is given.", false, 1},
  {"checkpoint.save_type", choice, "sharded", "", "Who writes what: `sharded` and `deduped`: each rank its slices, every slice once; `merged`: rank 0 whole tensors.", false, kUnbounded, "sharded deduped merged"},
  {"checkpoint.keep_last_n_checkpoints", integer, "", "checkpoints", "Removes older ones, except those that last and best point to.", false, 1},
  {"checkpoint.resume_from", text, "", "", "`last`, `best` or the folder of a checkpoint."},
  {"checkpoint.init_from", text, "", "file or folder", "Weights to start with, and nothing else: a safetensors file (Python's too), a folder of such with their index, or a checkpoint. Where resume_from finds a checkpoint, that one counts."},

  // --- what is told
  {"name", text, "", "", "Title of the run, as on its loss curve."},
  {"debug", group, "", "", "Checks that cost time."},
  {"debug.check_gradient_sync_cross_devices", boolean, "false", "", "Compares summed gradients of weights that several ranks hold, bit for bit in every step, and names the weight and the ranks that differ."},
  {"profile", group, "", "", "A window of steps whose instructions are timed on every rank."},
  {"profile.file", text, "", "file", "Chrome trace that is written at the end of the window; nothing is timed without it."},
  {"profile.start", integer, "10", "step", "First step of the window.", false, 1},
  {"profile.steps", integer, "3", "steps", "Steps of the window.", false, 1},
  {"peak_tflops", number, "", "TFLOP/s", "What a device computes at most; with it each step has the metric `mfu`.", false, 1e-6, "", 1e9},
  {"hook", hooks, "", "", "Functions by name that are called during training, a module that returns them, or a list of those."},
  {"hook.type", text, "", "", "Module that makes the hooks."},
  {"hook.args", map, "{}", "", "Arguments of its constructor."},
  {"log", components, "", "", "Loggers that receive the metrics of each step."},
  {"log.type", text, kRequired, "", "`jsonl`, `csv`, `tensorboard`, or a module of your own."},
  {"log.args", map, "{}", "", "Arguments of the logger: `path`, …"},
  {"log_level", choice, "info", "", "Least level that is written to the log.", false, kUnbounded, "debug info warning error off"},
  {"enable_progress_bar", boolean, "true", "", "Draws a bar when stderr is a terminal."},
  {"log_progress_every_n_train_steps", integer, "100", "steps", "A log line each n steps when there is no bar.", false, 1},
  {"metrics", text, "", "file", "Writes one JSON object a step to this file."},
};
// clang-format on

}  // namespace

std::span<const Key> keys() {
  return kKeys;
}

const Key* find_key(std::string_view path) {
  for (const Key& key : kKeys)
    if (key.path == path) return &key;
  return nullptr;
}

std::vector<const Key*> children(std::string_view path) {
  std::vector<const Key*> out;
  for (const Key& key : kKeys) {
    const std::string_view p = key.path;
    const size_t dot = p.rfind('.');
    const std::string_view parent = dot == std::string_view::npos ? "" : p.substr(0, dot);
    if (parent == path) out.push_back(&key);
  }
  return out;
}

std::vector<std::string> all_paths() {
  std::vector<std::string> out;
  for (const Key& key : kKeys) out.emplace_back(key.path);
  return out;
}

namespace {

std::string least_text(const Key& key) {
  return key.minimum > kUnbounded ? fmt::format(" ≥ {}", number_text(key.minimum)) : "";
}

}  // namespace

std::string type_text(const Key& key) {
  switch (key.type) {
    case boolean:
      return "true or false";
    case integer:
      if (*key.choices != '\0')
        return fmt::format("integer from {} to {}, or true or false", number_text(key.minimum),
                           number_text(key.maximum));
      return "integer" + least_text(key);
    case number:
      return "number" + least_text(key);
    case text:
      return "text";
    case words:
    case choice: {
      std::string out;
      for (const char* c = key.choices; *c != '\0'; ++c)
        out += *c == ' ' ? std::string(" | ") : std::string(1, *c);
      return key.type == words ? out + " | table" : out;
    }
    case names:
      return "text or list of texts";
    case map:
      return "table";
    case function:
      return "function";
    case component:
      return "component";
    case components:
      return "list of components";
    case hooks:
      return "table of functions, or component";
    case group:
      return "table";
  }
  return "";
}

}  // namespace nns::job
