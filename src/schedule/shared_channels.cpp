#include <algorithm>
#include <vector>

#include "pipetrain/schedule/lower.h"

namespace pipetrain::schedule {

LoweredSchedule on_channels_of(const LoweredSchedule& base, LoweredSchedule schedule) {
  std::vector<Channel> channels = base.channels;
  std::vector<int> numbers;  // by the channel's old number
  for (const Channel& channel : schedule.channels) {
    const auto same = std::find_if(channels.begin(), channels.end(), [&](const Channel& other) {
      return other.source == channel.source && other.destination == channel.destination &&
             other.direction == channel.direction;
    });
    numbers.push_back(int(same - channels.begin()));
    if (same == channels.end()) {
      channels.push_back(channel);
    } else {
      same->outgoing_slots = std::max(same->outgoing_slots, channel.outgoing_slots);
      same->incoming_slots = std::max(same->incoming_slots, channel.incoming_slots);
    }
  }
  for (std::vector<LoweredAction>& list : schedule.ranks) {
    for (LoweredAction& entry : list) {
      for (SlotRef* slot : {&entry.message, &entry.input, &entry.output}) {
        if (slot->channel >= 0) {
          slot->channel = numbers[size_t(slot->channel)];
        }
      }
    }
  }
  schedule.channels = std::move(channels);
  return schedule;
}

}  // namespace pipetrain::schedule
