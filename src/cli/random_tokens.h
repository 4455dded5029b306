#pragma once

#include <cstddef>
#include <string>

namespace pipetrain {

// A token shard of random tokens below `vocabulary` in a file without a name, the same on every
// rank: something to train on where only time counts.
class RandomTokens {
 public:
  RandomTokens(size_t tokens, int vocabulary);  // throws Error when the system has no room for it
  ~RandomTokens();
  RandomTokens(const RandomTokens&) = delete;
  RandomTokens& operator=(const RandomTokens&) = delete;

  // Can be opened by this process while the object lives, and then stays readable.
  std::string path() const;

 private:
  int file_ = -1;
};

}  // namespace pipetrain
