// JSON texts, read in one pass: a list of where each value stands, without a tree of strings. Large
// texts (a program a rank) are read so in the time that their bytes take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nns::graph {

class JsonText;

// A value of a text, which it looks at.
class Item {
 public:
  bool is_null() const { return begins('n'); }
  bool is_boolean() const { return begins('t') || begins('f'); }
  bool is_true() const { return begins('t'); }
  bool is_string() const { return begins('"'); }
  bool is_list() const { return begins('['); }
  bool is_object() const { return begins('{'); }
  // Nothing where it is no integer, no number of 64 bits.
  std::optional<int64_t> integer() const;
  std::optional<double> real() const;
  std::string string() const;  // of a string
  bool equals(std::string_view text) const { return is_string() && string() == text; }

  size_t size() const;  // entries of a list, fields of an object
  // The first entry or field and the one behind this one; each only where there is one.
  Item first() const;
  Item next() const;
  Item at(size_t entry) const;
  std::optional<Item> find(std::string_view field) const;
  std::string key() const;    // of a field
  std::string shown() const;  // on one line without spaces

 private:
  friend class JsonText;
  Item(const JsonText& of, uint32_t number) : of_(&of), number_(number) {}
  bool begins(char c) const { return text()[0] == c; }
  std::string_view text() const;

  const JsonText* of_;
  uint32_t number_;
};

class JsonText {
 public:
  // The text must live as long. Throws nlohmann::json::exception for what is no JSON, a state Error
  // for a byte order mark, and std::length_error for more than `depth` levels. Of fields with one
  // name the first is found.
  JsonText(std::string_view text, int depth);
  Item root() const { return {*this, 0}; }

 private:
  friend class Item;
  struct Entry {
    uint32_t begin = 0, end = 0;    // of its text
    uint32_t key = 0, key_end = 0;  // of its key's, with quotes
    uint32_t next = 0;              // number of what follows all of it
    uint32_t size = 0;
  };
  class Scanner;

  std::string_view text_;
  std::vector<Entry> entries_;
};

}  // namespace nns::graph
