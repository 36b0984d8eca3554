// The part of CUDA's driver API that is used, restated: no toolkit is needed to compile, and none of its libraries to
// load. A test compares everything here with <cuda.h> where a toolkit is present.
#pragma once

#include <cstddef>
#include <cstdint>

namespace r2ccl::cuda {

using Result = int;
using DeviceId = int;
using Address = unsigned long long;  // of device memory; with unified addressing the number that a pointer holds
using Context = struct ContextRecord*;
using Stream = struct StreamRecord*;
using Event = struct EventRecord*;
using Module = struct ModuleRecord*;
using Function = struct FunctionRecord*;

struct IpcHandle {
  char reserved[64];
};

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidContext = 201,
  kPeerAccessAlreadyEnabled = 704,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
  kHostMemoryAlreadyRegistered = 712,
  kNotSupported = 801,
  kCaptureErrorsFirst = 900,  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
  kCaptureErrorsLast = 908,   // CUDA_ERROR_CAPTURED_EVENT
};

enum : int {
  kAttributeProcessors = 16,
  kAttributeThreadsPerProcessor = 39,
  kAttributeUnifiedAddressing = 41,
  kAttributeMajor = 75,
  kAttributeMinor = 76,
  kAttributeFlushRemoteWrites = 98,
  kAttributeNicAccess = 116,
  kAttributeFlushNicWrites = 117,
  kAttributeWritesOrdering = 118,
  kAttributeMemoryOperations64 = 122,
  kAttributeDmaBuf = 124,
};

enum : int {
  kPointerMemoryType = 2,
  kPointerBufferId = 7,
  kPointerIsManaged = 8,
  kPointerOrdinal = 9,
};

enum : unsigned {
  kMemoryHost = 1,
  kMemoryDevice = 2,
  kMemoryUnified = 4,
};

enum : unsigned {
  kStreamNonBlocking = 1,
  kEventDisableTiming = 2,
  kHostPortable = 1,      // of cuMemHostAlloc and of cuMemHostRegister
  kHostDeviceMap = 2,     // likewise
  kWaitGreaterEqual = 0,  // cyclic: holds when (int64_t)(*word - value) >= 0
  kIpcLazyPeerAccess = 1,
};

enum : int { kRangeDmaBuf = 1 };
enum : int { kFlushByHost = 1 };                               // of kAttributeFlushNicWrites
enum : int { kOrderedForOwner = 100 };                         // of kAttributeWritesOrdering, at least
enum : int { kFlushCurrentContext = 0, kFlushToOwner = 100 };  // of cuFlushGPUDirectRDMAWrites
enum : int { kCaptureNone = 0, kCaptureModeRelaxed = 2 };

// X(field, symbol, parameters). Symbols carry their version, as the header's macros would choose it.
#define R2CCL_CUDA_REQUIRED(X)                                                                                \
  X(init, cuInit, (unsigned))                                                                                 \
  X(driver_version, cuDriverGetVersion, (int*))                                                               \
  X(error_name, cuGetErrorName, (Result, const char**))                                                       \
  X(device_count, cuDeviceGetCount, (int*))                                                                   \
  X(device_get, cuDeviceGet, (DeviceId*, int))                                                                \
  X(device_name, cuDeviceGetName, (char*, int, DeviceId))                                                     \
  X(device_attribute, cuDeviceGetAttribute, (int*, int, DeviceId))                                            \
  X(device_pci_bus_id, cuDeviceGetPCIBusId, (char*, int, DeviceId))                                           \
  X(can_access_peer, cuDeviceCanAccessPeer, (int*, DeviceId, DeviceId))                                       \
  X(primary_retain, cuDevicePrimaryCtxRetain, (Context*, DeviceId))                                           \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (DeviceId))                                                \
  X(context_push, cuCtxPushCurrent_v2, (Context))                                                             \
  X(context_pop, cuCtxPopCurrent_v2, (Context*))                                                              \
  X(enable_peer_access, cuCtxEnablePeerAccess, (Context, unsigned))                                           \
  X(allocate, cuMemAlloc_v2, (Address*, size_t))                                                              \
  X(release, cuMemFree_v2, (Address))                                                                         \
  X(address_range, cuMemGetAddressRange_v2, (Address*, size_t*, Address))                                     \
  X(host_allocate, cuMemHostAlloc, (void**, size_t, unsigned))                                                \
  X(host_release, cuMemFreeHost, (void*))                                                                     \
  X(host_register, cuMemHostRegister_v2, (void*, size_t, unsigned))                                           \
  X(host_unregister, cuMemHostUnregister, (void*))                                                            \
  X(host_device_pointer, cuMemHostGetDevicePointer_v2, (Address*, void*, unsigned))                           \
  X(pointer_attribute, cuPointerGetAttribute, (void*, int, Address))                                          \
  X(copy_async, cuMemcpyAsync, (Address, Address, size_t, Stream))                                            \
  X(stream_create, cuStreamCreate, (Stream*, unsigned))                                                       \
  X(stream_destroy, cuStreamDestroy_v2, (Stream))                                                             \
  X(stream_query, cuStreamQuery, (Stream))                                                                    \
  X(stream_synchronize, cuStreamSynchronize, (Stream))                                                        \
  X(stream_is_capturing, cuStreamIsCapturing, (Stream, int*))                                                 \
  X(stream_wait_value, cuStreamWaitValue64_v2, (Stream, Address, uint64_t, unsigned))                         \
  X(stream_write_value, cuStreamWriteValue64_v2, (Stream, Address, uint64_t, unsigned))                       \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int*))                                         \
  X(event_create, cuEventCreate, (Event*, unsigned))                                                          \
  X(event_destroy, cuEventDestroy_v2, (Event))                                                                \
  X(event_record, cuEventRecord, (Event, Stream))                                                             \
  X(event_query, cuEventQuery, (Event))                                                                       \
  X(module_load, cuModuleLoadData, (Module*, const void*))                                                    \
  X(module_unload, cuModuleUnload, (Module))                                                                  \
  X(module_function, cuModuleGetFunction, (Function*, Module, const char*))                                   \
  X(launch, cuLaunchKernel,                                                                                   \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**)) \
  X(ipc_export, cuIpcGetMemHandle, (IpcHandle*, Address))                                                     \
  X(ipc_import, cuIpcOpenMemHandle_v2, (Address*, IpcHandle, unsigned))                                       \
  X(ipc_close, cuIpcCloseMemHandle, (Address))

// Not in every driver that can do the rest; a field is nullptr where the driver lacks it.
#define R2CCL_CUDA_OPTIONAL(X)                                \
  X(function_load, cuFuncLoad, (Function))                    \
  X(flush_nic_writes, cuFlushGPUDirectRDMAWrites, (int, int)) \
  X(range_handle, cuMemGetHandleForAddressRange, (void*, Address, size_t, int, unsigned long long))

}  // namespace r2ccl::cuda
