// What a batch does on its stream: collective operations out of messages between all pairs of
// ranks, then its sends and receives.

#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>

#include "emulator/nccl_group.h"

namespace emulator::nccl {
namespace {

// A reduction works on this many bytes at a time, so that its scratch is bounded.
constexpr size_t chunk_bytes = size_t(16) << 20;

// The type that sums of T are formed in. Integers wrap around.
template <class T>
struct SumOf {
  using type = T;
};
template <>
struct SumOf<__nv_bfloat16> {
  using type = float;
};
template <>
struct SumOf<int8_t> {
  using type = uint8_t;
};
template <>
struct SumOf<int32_t> {
  using type = uint32_t;
};
template <>
struct SumOf<int64_t> {
  using type = uint64_t;
};

// out[i] = parts[0][i] + parts[1][i] + ..., from left to right; out may be one of the parts.
template <class T>
void reduce_parts(T* out, const std::vector<const T*>& parts, size_t count, ncclRedOp_t op) {
  using Sum = typename SumOf<T>::type;
  const auto load = [](T value) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return float(value);
    } else {
      return value;
    }
  };
  constexpr size_t tile = 1024;
  for (size_t begin = 0; begin < count; begin += tile) {
    const size_t length = std::min(tile, count - begin);
    decltype(load(T())) values[tile];
    for (size_t i = 0; i < length; ++i) {
      values[i] = load(parts[0][begin + i]);
    }
    for (size_t part = 1; part < parts.size(); ++part) {
      const T* from = parts[part] + begin;
      if (op == ncclSum) {
        for (size_t i = 0; i < length; ++i) {
          values[i] = decltype(load(T()))(Sum(values[i]) + Sum(load(from[i])));
        }
      } else {
        for (size_t i = 0; i < length; ++i) {
          const auto value = load(from[i]);
          values[i] = value > values[i] ? value : values[i];
        }
      }
    }
    for (size_t i = 0; i < length; ++i) {
      out[begin + i] = T(values[i]);
    }
  }
}

template <class T>
void reduce_as(void* out, const std::vector<const char*>& parts, size_t count, ncclRedOp_t op) {
  std::vector<const T*> typed;
  for (const char* part : parts) {
    typed.push_back(reinterpret_cast<const T*>(part));
  }
  reduce_parts(static_cast<T*>(out), typed, count, op);
}

void reduce(void* out, const std::vector<const char*>& parts, size_t count, ncclDataType_t type,
            ncclRedOp_t op) {
  switch (type) {
    case ncclInt8:
      return reduce_as<int8_t>(out, parts, count, op);
    case ncclUint8:
      return reduce_as<uint8_t>(out, parts, count, op);
    case ncclInt32:
      return reduce_as<int32_t>(out, parts, count, op);
    case ncclInt64:
      return reduce_as<int64_t>(out, parts, count, op);
    case ncclFloat32:
      return reduce_as<float>(out, parts, count, op);
    case ncclFloat64:
      return reduce_as<double>(out, parts, count, op);
    case ncclBfloat16:
      return reduce_as<__nv_bfloat16>(out, parts, count, op);
  }
}

void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memmove(to, from, bytes);
  }
}

// One collective operation of one rank.
class Performance {
 public:
  Performance(const Batch& batch, const Collective& collective)
      : comm_(*batch.comm),
        speed_(batch.speed),
        envelope_(collective.envelope),
        send_(static_cast<char*>(const_cast<void*>(collective.send))),
        receive_(static_cast<char*>(collective.receive)),
        element_(type_bytes(ncclDataType_t(envelope_.type))) {}

  void run() {
    switch (envelope_.operation) {
      case Operation::all_reduce:
        return all_reduce();
      case Operation::reduce_scatter:
        return reduce_scatter();
      case Operation::all_gather:
        return all_gather();
      case Operation::broadcast:
        return broadcast();
      case Operation::point_to_point:
        return;
    }
  }

 private:
  // Elements [begin, end) of a buffer.
  struct Range {
    size_t begin, end;
    size_t count() const { return end - begin; }
  };

  void add(bool sends, int peer, char* data, size_t count) {
    Envelope envelope = envelope_;
    envelope.bytes = count * element_;
    transfers_.push_back({sends, peer, data, envelope});
  }

  void exchange() {
    comm_.transport->exchange(transfers_, speed_, [this](const std::string& disagreement) {
      comm_.record_error(disagreement);
      agreed_ = false;
    });
    transfers_.clear();
  }

  template <class Visit>
  void for_each_peer(const Visit& visit) const {
    for (int step = 1; step < comm_.ranks; ++step) {
      visit((comm_.rank + step) % comm_.ranks);
    }
  }

  // Every rank's `mine`-like range of send_ goes to its owner; this rank reduces the parts of its
  // own into `out`. range_of(r) is what rank r owns.
  template <class RangeOf>
  void reduce_ranges(const RangeOf& range_of, char* out) {
    const Range mine = range_of(comm_.rank);
    const size_t bytes = mine.count() * element_;
    thread_local std::vector<char> scratch;
    scratch.resize(std::max(scratch.size(), bytes * size_t(comm_.ranks)));
    std::vector<const char*> parts(size_t(comm_.ranks), nullptr);
    parts[size_t(comm_.rank)] = send_ + mine.begin * element_;
    for_each_peer([&](int peer) {
      const Range theirs = range_of(peer);
      char* const part = scratch.data() + size_t(peer) * bytes;
      parts[size_t(peer)] = part;
      add(true, peer, send_ + theirs.begin * element_, theirs.count());
      add(false, peer, part, mine.count());
    });
    exchange();
    reduce(out, parts, mine.count(), ncclDataType_t(envelope_.type),
           ncclRedOp_t(envelope_.reduction));
  }

  size_t chunk() const { return std::max<size_t>(chunk_bytes / element_ / size_t(comm_.ranks), 1); }

  void reduce_scatter() {
    for (size_t begin = 0; agreed_ && begin < envelope_.count; begin += chunk()) {
      const size_t end = std::min<size_t>(begin + chunk(), envelope_.count);
      const auto range_of = [&](int rank) {
        const size_t shard = size_t(rank) * envelope_.count;
        return Range{shard + begin, shard + end};
      };
      reduce_ranges(range_of, receive_ + begin * element_);
    }
  }

  // Every rank reduces its part of a chunk and sends it to all others.
  void all_reduce() {
    const size_t whole = chunk() * size_t(comm_.ranks);
    for (size_t begin = 0; agreed_ && begin < envelope_.count; begin += whole) {
      const size_t end = std::min<size_t>(begin + whole, envelope_.count);
      const size_t part = (end - begin + size_t(comm_.ranks) - 1) / size_t(comm_.ranks);
      const auto range_of = [&](int rank) {
        return Range{std::min(begin + size_t(rank) * part, end),
                     std::min(begin + (size_t(rank) + 1) * part, end)};
      };
      const Range mine = range_of(comm_.rank);
      reduce_ranges(range_of, receive_ + mine.begin * element_);
      if (!agreed_) {
        return;
      }
      for_each_peer([&](int peer) {
        const Range theirs = range_of(peer);
        add(true, peer, receive_ + mine.begin * element_, mine.count());
        add(false, peer, receive_ + theirs.begin * element_, theirs.count());
      });
      exchange();
    }
  }

  void all_gather() {
    const size_t bytes = envelope_.count * element_;
    copy(receive_ + size_t(comm_.rank) * bytes, send_, bytes);
    for_each_peer([&](int peer) {
      add(true, peer, send_, envelope_.count);
      add(false, peer, receive_ + size_t(peer) * bytes, envelope_.count);
    });
    exchange();
  }

  void broadcast() {
    if (comm_.rank == envelope_.root) {
      copy(receive_, send_, envelope_.count * element_);
      for_each_peer([&](int peer) { add(true, peer, send_, envelope_.count); });
    } else {
      add(false, envelope_.root, receive_, envelope_.count);
    }
    exchange();
  }

  ncclComm& comm_;
  const LinkSpeed speed_;
  const Envelope envelope_;
  char* const send_;
  char* const receive_;
  const size_t element_;
  std::vector<Transfer> transfers_;
  bool agreed_ = true;  // with all peers so far; if not, the rest of the operation is left out
};

}  // namespace

void perform(const Batch& batch) {
  for (const Collective& collective : batch.collectives) {
    Performance(batch, collective).run();
  }
  for (const Copy& one : batch.copies) {
    copy(one.to, one.from, one.bytes);
  }
  if (!batch.transfers.empty()) {
    batch.comm->transport->exchange(
        batch.transfers, batch.speed,
        [&](const std::string& disagreement) { batch.comm->record_error(disagreement); });
  }
}

}  // namespace emulator::nccl
