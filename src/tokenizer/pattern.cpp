#include "tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace nns::tokenizer {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;  // steps of one match
constexpr uint32_t kHeapLimit = 64 * 1024;    // KiB
constexpr size_t kLongest = 1 << 16;          // bytes of an expression

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct MatchData {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, 8 << 20, nullptr);
  MatchData() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchData() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;
};

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  Code() = default;
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

Pattern::Pattern(const std::string& expression, const std::string& path) {
  if (expression.size() > kLongest)
    fail(ErrorKind::data, "[tokenizer.read] '{}': a pattern of {} bytes; expected at most {}", path,
         expression.size(), kLongest);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto code = std::make_shared<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code->code == nullptr)
    fail(ErrorKind::data, "[tokenizer.read] '{}': the pattern '{}' is wrong at {}: {}", path,
         expression, at, message_of(error));
  // Where the processor has no such compiler, pcre2_match interprets.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

Pattern Pattern::literal(std::string_view text, const std::string& path) {
  std::string expression;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}-#&~/").find(c) != std::string_view::npos)
      expression += '\\';
    expression += c;
  }
  return Pattern(expression, path);
}

void Pattern::split(std::string_view text, std::vector<Piece>& pieces) const {
  thread_local const MatchData match;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto next_character = [&](size_t at) {
    do ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    return at;
  };
  size_t done = 0, from = 0;
  while (from < text.size()) {
    const int found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                  match.data, match.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw Error(ErrorKind::data,
                  fmt::format("[tokenizer.encode] the pattern of the tokenizer cannot split the "
                              "text at byte {}: {}",
                              from, message_of(found)),
                  "its pattern takes too many steps for this text");
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.data);
    const size_t begin = ends[0], end = ends[1];
    if (end <= begin) {  // empty, or \K moved the start behind the end
      from = next_character(from > end ? from : end);
      continue;
    }
    if (begin > done) pieces.push_back({done, begin, false});
    if (begin < done || end <= from) break;  // \K moved it back: nothing more can be told apart
    pieces.push_back({begin, end, true});
    done = from = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), false});
}

}  // namespace nns::tokenizer
