#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>

// The part of NCCL 2.28 that the emulator implements, under NCCL's names and numbers. Stricter than
// NCCL where NCCL is lenient:
// - A send ends only when the matching receive has taken the data, whatever its size.
// - Count and type (and for a collective operation, reduction and root) are compared on both ends.
// A
//   mismatch is an asynchronous error (ncclInvalidUsage) of both communicators and devices.
// - The first use of a communicator with a peer in one direction, and its first collective
//   operation, block the calling thread until the peers' matching calls.
// - The operations of a communicator run one after another, over several streams too; with
//   splitShare = 1 those of a child and its parent as well.
// - Buffers must lie in one allocation of the communicator's device, and the stream must be one of
//   that device; all operations of one communicator in one group must use the same stream.
// Sums are formed in rank order; those of bf16 in fp32, rounded once.
// A dead peer is never reported: what waits for it waits for ever. ncclCommAbort does not exist.
// Ranks are processes or threads of one host. Communicators cannot be made inside a group.

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)

#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_CONFIG_UNDEF_INT INT_MIN

typedef struct ncclComm* ncclComm_t;

typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
} ncclResult_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclInt64 = 4,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
} ncclDataType_t;

typedef enum { ncclSum = 0, ncclMax = 2 } ncclRedOp_t;

// blocking must be 1 or undefined. minCTAs and maxCTAs are checked and have no effect.
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int minCTAs;
  int maxCTAs;
  int splitShare;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                 \
  {                                                                             \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT     \
  }

extern "C" {

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
// The communicator's asynchronous error, or else the calling thread's last error, in words.
const char* ncclGetLastError(ncclComm_t comm);

// ---- communicators. Making one blocks until all its ranks take part.
// The process that makes the id must live until all ranks have joined.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
// Collective over comm; ranks of one colour form a new communicator, ordered by key, then by rank.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config);
// Waits for the communicator's own operations, not for its peers.
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);

// ---- operations. In a group, a communicator's sends and receives progress together, after its
// collective operations; different communicators are operations of their own.
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
// Each may be in place as NCCL documents it.
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);

}  // extern "C"
