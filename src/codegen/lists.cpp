#include "codegen/lists.h"

#include <fmt/format.h>

namespace nns::codegen {
namespace {

// An expression cut at its numbers in brackets: "s.h[3].x[5]" → "s.h[", 3, "].x[", 5, "]".
struct Cut {
  std::vector<std::string> texts;
  std::vector<int64_t> numbers;
};

Cut cut(const std::string& text) {
  Cut out{{""}, {}};
  for (size_t at = 0; at < text.size();) {
    out.texts.back() += text[at];
    size_t end = at + 1;
    if (text[at] == '[')
      while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (end > at + 1 && end - at < 11 && end < text.size() && text[end] == ']') {
      out.numbers.push_back(std::stoll(text.substr(at + 1, end - at - 1)));
      out.texts.emplace_back();
      at = end;
    } else {
      ++at;
    }
  }
  return out;
}

// Of an element "tanh[3]": "tanh" and 3.
std::optional<std::pair<std::string, int64_t>> element(const std::string& text) {
  const Cut parts = cut(text);
  if (parts.numbers.empty() || parts.texts.back() != "]") return std::nullopt;
  return std::pair(text.substr(0, text.rfind('[')), parts.numbers.back());
}

}  // namespace

std::string growing(int64_t first, int64_t growth, const Numbering& i) {
  const int64_t factor = growth * i.by, rest = first - factor * i.from;
  if (factor == 0) return fmt::format("{}", first);
  if (factor == -1 && rest != 0) return fmt::format("{} - i", rest);
  const std::string product = factor == 1    ? "i"
                              : factor == -1 ? "-i"
                                             : fmt::format("{} * i", factor);
  if (rest == 0) return product;
  return fmt::format("{} {} {}", product, rest > 0 ? '+' : '-', rest > 0 ? rest : -rest);
}

std::optional<std::string> growing(const std::vector<std::string>& texts, const Numbering& i) {
  const Cut first = cut(texts.at(0)), second = cut(texts.at(1));
  if (first.texts != second.texts) return std::nullopt;
  for (size_t k = 2; k < texts.size(); ++k) {
    const Cut here = cut(texts[k]);
    if (here.texts != first.texts) return std::nullopt;
    for (size_t n = 0; n < first.numbers.size(); ++n) {
      const int64_t growth = second.numbers[n] - first.numbers[n];
      if (here.numbers[n] != first.numbers[n] + growth * static_cast<int64_t>(k))
        return std::nullopt;
    }
  }
  std::string out = first.texts[0];
  for (size_t n = 0; n < first.numbers.size(); ++n)
    out += growing(first.numbers[n], second.numbers[n] - first.numbers[n], i) + first.texts[n + 1];
  return out;
}

std::optional<std::pair<int64_t, int64_t>> growth(const std::string& a, const std::string& b) {
  const Cut first = cut(a), second = cut(b);
  if (first.texts != second.texts) return std::nullopt;
  std::optional<std::pair<int64_t, int64_t>> found;
  for (size_t n = 0; n < first.numbers.size(); ++n) {
    if (first.numbers[n] == second.numbers[n]) continue;
    if (found) return std::nullopt;
    found = {first.numbers[n], second.numbers[n] - first.numbers[n]};
  }
  return found;
}

std::vector<Piece> pieces(const std::vector<std::string>& texts) {
  std::vector<Piece> out;
  for (size_t k = 0; k < texts.size();) {
    size_t end = k + 1;
    const auto first = texts.size() > kMany ? element(texts[k]) : std::nullopt;
    int64_t step = 0;
    for (; first && end < texts.size(); ++end) {
      const auto next = element(texts[end]);
      if (!next || next->first != first->first) break;
      if (end == k + 1) step = next->second - first->second;
      if ((step != 1 && step != -1) ||
          next->second != first->second + step * static_cast<int64_t>(end - k))
        break;
    }
    if (end - k > kMany) {
      out.push_back({first->first, first->second,
                     first->second + step * static_cast<int64_t>(end - 1 - k), ""});
    } else {
      for (; k < end; ++k) out.push_back({"", 0, 0, texts[k]});
    }
    k = end;
  }
  return out;
}

std::string list_text(const std::vector<std::string>& texts) {
  std::string out, singles;
  size_t parts = 0;
  const auto add = [&](const std::string& part) {
    out += (out.empty() ? "" : ", ") + part;
    ++parts;
  };
  const auto close = [&] {
    if (!singles.empty()) add("{ " + singles + " }");
    singles.clear();
  };
  for (const Piece& piece : pieces(texts)) {
    if (piece.table.empty()) {
      singles += (singles.empty() ? "" : ", ") + piece.single;
      continue;
    }
    close();
    add(fmt::format("items({}, {}, {})", piece.table, piece.first, piece.last));
  }
  close();
  if (parts == 0) return "{}";
  return parts == 1 ? out : fmt::format("concat({})", out);
}

}  // namespace nns::codegen
