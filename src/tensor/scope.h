// Where in the model a call is made, and what its random numbers depend on. One Scope a Lua State.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

struct lua_State;

namespace nns::tensor {

// The counters every draw is a function of, beside its key.
struct RandomContext {
  int64_t seed = 0, step = 0, micro = 0;
};

class Scope {
 public:
  // Stack of the paths of the modules whose forward is running.
  void push_module(std::string path) { modules_.push_back(std::move(path)); }
  void pop_module();
  int module_depth() const { return static_cast<int>(modules_.size()); }
  // Drops modules above `depth` (after an error left forward early).
  void reset_modules(int depth);
  // Path of the innermost module; "" outside of all modules and in the root.
  const std::string& module() const;

  // Returns how many calls of `op` ("aten::add.Tensor") this module made before in the current
  // forward, and counts this one.
  int next_ordinal(std::string_view op);
  // Starts a new forward; returns the counts of the one before, for one that goes on after it.
  std::unordered_map<std::string, int> reset_ordinals() { return std::exchange(ordinals_, {}); }
  void set_ordinals(std::unordered_map<std::string, int> ordinals) {
    ordinals_ = std::move(ordinals);
  }

  // Key of a random operator's draw: "<module path>:<operator>#<ordinal>", operator without
  // namespace and overload ("transformer.h.0.attn:dropout#0"). Counts the call.
  std::string next_random_key(std::string_view op);
  static std::string random_key(std::string_view module, std::string_view op, int ordinal);

  RandomContext random;

 private:
  std::vector<std::string> modules_;
  std::unordered_map<std::string, int> ordinals_;
};

// The Scope of the State that owns L.
Scope& scope_of(lua_State* L);

}  // namespace nns::tensor
