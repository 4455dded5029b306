#include "pipetrain/train/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "pipetrain/error.h"
#include "pipetrain/progress.h"
#include "train/mapped_file.h"
#include "train/output_file.h"

namespace pipetrain {
namespace {

using nlohmann::json;

constexpr size_t piece_bytes = size_t(1) << 24;  // that are written between two reports of progress
constexpr size_t largest_header = 100'000'000;   // as the reference implementation

const std::map<std::string, size_t> element_sizes = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
    {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
    {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};

// What is wrong with a header; the caller adds the file.
struct Malformed {
  std::string what;
};

// The header's JSON; a name that stands twice in one object is an error, not the last one's win.
json parse_header(const char* begin, const char* end) {
  std::vector<std::set<std::string>> names;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > 8) {
      throw Malformed{"the header is nested too deeply"};
    }
    if (event == json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == json::parse_event_t::key) {
      const std::string& name = value.get_ref<const std::string&>();
      if (!names.back().insert(name).second) {
        throw Malformed{fmt::format("'{}' stands twice in the header", name)};
      }
    }
    return true;
  };
  try {
    return json::parse(begin, end, check);
  } catch (const json::exception&) {
    throw Malformed{"the header is not valid JSON"};
  }
}

size_t unsigned_number(const json& value, const std::string& name, const char* what) {
  if (!value.is_number_unsigned()) {
    throw Malformed{fmt::format("tensor '{}': {} is not a list of sizes", name, what)};
  }
  return value.get<size_t>();
}

TensorInfo parse_tensor(const std::string& name, const json& entry, size_t data_bytes) {
  const auto require = [&](bool ok, const std::string& what) {
    if (!ok) {
      throw Malformed{fmt::format("tensor '{}': {}", name, what)};
    }
  };
  require(entry.is_object() && entry.size() == 3 && entry.contains("dtype") &&
              entry.contains("shape") && entry.contains("data_offsets"),
          "dtype, shape and data_offsets are needed");
  const json& dtype = entry["dtype"];
  const json& shape = entry["shape"];
  const json& offsets = entry["data_offsets"];
  require(dtype.is_string() && element_sizes.contains(dtype.get<std::string>()),
          fmt::format("dtype {} is unknown", dtype.dump()));
  require(shape.is_array(), "shape is not a list of sizes");
  require(offsets.is_array() && offsets.size() == 2, "data_offsets is not a pair");

  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype = dtype.get<std::string>();
  tensor.begin = unsigned_number(offsets[0], name, "data_offsets");
  tensor.end = unsigned_number(offsets[1], name, "data_offsets");
  require(tensor.begin <= tensor.end && tensor.end <= data_bytes,
          fmt::format("data_offsets [{}, {}] do not lie in the {} bytes of data", tensor.begin,
                      tensor.end, data_bytes));
  size_t bytes = element_sizes.at(tensor.dtype);
  for (const json& dimension : shape) {
    tensor.shape.push_back(unsigned_number(dimension, name, "shape"));
    require(!__builtin_mul_overflow(bytes, tensor.shape.back(), &bytes), "its size overflows");
  }
  require(bytes == tensor.end - tensor.begin,
          fmt::format("shape and dtype need {} bytes, data_offsets give {}", bytes,
                      tensor.end - tensor.begin));
  return tensor;
}

std::vector<TensorInfo> parse_tensors(std::span<const std::byte> file, size_t* data_begin) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    throw Malformed{fmt::format("{} bytes are too short for a safetensors file", file.size())};
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > largest_header || header_bytes > file.size() - sizeof(header_bytes)) {
    throw Malformed{fmt::format(
        "its header should have {} bytes, and the file has {}; it is truncated or no safetensors "
        "file",
        header_bytes, file.size())};
  }
  *data_begin = sizeof(header_bytes) + header_bytes;
  const char* begin = reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes);
  const json header = parse_header(begin, begin + header_bytes);
  if (!header.is_object()) {
    throw Malformed{"the header is not a JSON object"};
  }
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors.push_back(parse_tensor(name, entry, file.size() - *data_begin));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  size_t position = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin != position) {
      throw Malformed{fmt::format(
          "tensor '{}' {} byte {} of the data", tensor.name,
          tensor.begin < position ? "overlaps another before" : "leaves a hole after", position)};
    }
    position = tensor.end;
  }
  if (position != file.size() - *data_begin) {
    throw Malformed{fmt::format("its tensors end at byte {} of the data, the file at byte {}",
                                position, file.size() - *data_begin)};
  }
  return tensors;
}

double half_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                            : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <typename T, typename Convert>
void convert(const std::byte* from, size_t count, double* to, const Convert& value) {
  for (size_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, from + i * sizeof(T), sizeof(T));
    to[i] = value(element);
  }
}

}  // namespace

size_t TensorInfo::elements() const {
  size_t count = 1;
  for (const size_t dimension : shape) {
    count *= dimension;
  }
  return count;
}

// ---- reading

SafetensorsFile::SafetensorsFile(const std::string& path, const std::string& flag)
    : flag_(flag), file_(std::make_unique<MappedFile>(path, flag)) {
  try {
    tensors_ = parse_tensors(file_->bytes(), &data_begin_);
  } catch (const Malformed& malformed) {
    throw UsageError(fmt::format("{} {}: {}", flag, path, malformed.what));
  }
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const std::string& SafetensorsFile::path() const {
  return file_->path();
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const TensorInfo& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

std::span<const std::byte> SafetensorsFile::data(const TensorInfo& tensor) const {
  return file_->bytes().subspan(data_begin_ + tensor.begin, tensor.end - tensor.begin);
}

uint64_t SafetensorsFile::checksum() const {
  return file_->checksum(1024);
}

bool SafetensorsFile::readable(const TensorInfo& tensor) {
  return tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16" ||
         tensor.dtype == "F64";
}

void SafetensorsFile::values(const TensorInfo& tensor, size_t first, size_t count,
                             double* values) const {
  const std::byte* from = data(tensor).data() + first * element_sizes.at(tensor.dtype);
  if (tensor.dtype == "F32") {
    convert<float>(from, count, values, [](float x) { return double(x); });
  } else if (tensor.dtype == "F64") {
    convert<double>(from, count, values, [](double x) { return x; });
  } else if (tensor.dtype == "BF16") {
    convert<uint16_t>(from, count, values,
                      [](uint16_t x) { return double(std::bit_cast<float>(uint32_t(x) << 16)); });
  } else if (tensor.dtype == "F16") {
    convert<uint16_t>(from, count, values, half_to_double);
  } else {
    throw UsageError(fmt::format("{} {}: tensor '{}' has dtype {}; F32, F16, BF16 and F64 are read",
                                 flag_, path(), tensor.name, tensor.dtype));
  }
}

std::vector<double> SafetensorsFile::values(const TensorInfo& tensor) const {
  constexpr size_t most = size_t(1) << 20;  // between two reports of progress
  std::vector<double> result(tensor.elements());
  for (size_t first = 0; first < result.size(); first += most) {
    values(tensor, first, std::min(most, result.size() - first), result.data() + first);
    report_progress();
  }
  return result;
}

// ---- writing

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Tensor>& tensors)
    : path_(path), file_(std::make_unique<OutputFile>(path)) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // other programs refuse a file without it
  size_t position = 0;
  for (const Tensor& tensor : tensors) {
    const size_t bytes =
        TensorInfo{"", "", tensor.shape, 0, 0}.elements() * element_sizes.at(tensor.dtype);
    sizes_.push_back(bytes);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {position, position + bytes}}};
    position += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const uint64_t header_bytes = text.size();
  file_->write(std::as_bytes(std::span(&header_bytes, 1)));
  file_->write(text);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::span<const std::byte> data) {
  if (next_ == sizes_.size() || data.size() != sizes_[next_]) {
    throw InternalError(
        fmt::format("tensor {} of {} was written with {} bytes", next_, path_, data.size()));
  }
  ++next_;
  for (; !data.empty(); data = data.subspan(std::min(piece_bytes, data.size()))) {
    file_->write(data.first(std::min(piece_bytes, data.size())));
    report_progress();
  }
}

void SafetensorsWriter::finish() {
  if (next_ != sizes_.size()) {
    throw InternalError(
        fmt::format("{} was finished after {} of {} tensors", path_, next_, sizes_.size()));
  }
  file_->finish();
}

}  // namespace pipetrain
