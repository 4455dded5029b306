#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/emulator/cuda_fixture.h"

// Documented behaviour of CUDA: these tests also hold on a GPU.
namespace pipetrain::test {
namespace {

using CudaDevice = Cuda;

TEST_F(CudaDevice, TheCurrentDeviceBelongsToTheThread) {
  int count = 0;
  ok(cudaGetDeviceCount(&count));
  ok(cudaSetDevice(count - 1));
  std::thread([] {
    int device = -1;
    ok(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
  }).join();
  int device = -1;
  ok(cudaGetDevice(&device));
  EXPECT_EQ(device, count - 1);
  ok(cudaSetDevice(0));
}

TEST_F(CudaDevice, AMissingDeviceIsAnErrorThatIsForgottenOnceRead) {
  int count = 0;
  ok(cudaGetDeviceCount(&count));
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  int device = -1;
  ok(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
}

TEST_F(CudaDevice, PropertiesAgreeWithTheOtherQueries) {
  cudaDeviceProp properties;
  ok(cudaGetDeviceProperties(&properties, 0));
  EXPECT_GT(std::strlen(properties.name), 0u);
  EXPECT_GE(properties.multiProcessorCount, 1);
  size_t available = 0;
  size_t total = 0;
  ok(cudaMemGetInfo(&available, &total));
  EXPECT_LE(total, properties.totalGlobalMem);
  EXPECT_LE(available, total);
  char id[32];
  ok(cudaDeviceGetPCIBusId(id, sizeof(id), 0));
  char expected[32];
  std::snprintf(expected, sizeof(expected), "%04x:%02x:%02x.0", unsigned(properties.pciDomainID),
                unsigned(properties.pciBusID), unsigned(properties.pciDeviceID));
  EXPECT_STRCASEEQ(id, expected);
}

TEST_F(CudaDevice, AnIdThatHasNoRoomIsAnError) {
  char id[4];
  EXPECT_EQ(cudaDeviceGetPCIBusId(id, sizeof(id), 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_F(CudaDevice, VersionsAreAtLeastTheOldestSupported) {
  int version = 0;
  ok(cudaDriverGetVersion(&version));
  EXPECT_GE(version, 12000);
  ok(cudaRuntimeGetVersion(&version));
  EXPECT_GE(version, 12030);
}

TEST_F(CudaDevice, ErrorsHaveNames) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

}  // namespace
}  // namespace pipetrain::test
