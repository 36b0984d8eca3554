// C ABI of the native core: opaque handles, plain records, no exceptions. Used by the Cython module and by C++ tests.
//
// Threads: every function may be called from any thread unless it says otherwise. Memory: the caller keeps buffers and
// plans alive until the calls that use them are done; handles are freed by the function that names them.
#ifndef R2CCL_R2CCL_H
#define R2CCL_R2CCL_H

#include <stddef.h>
#include <stdint.h>

#include "r2ccl/plan.h"

// name, number, Python class. The one list of status codes; a test compares it with r2ccl/errors.py.
#define R2CCL_STATUS_LIST(X)                \
  X(OK, 0, "")                              \
  X(IN_PROGRESS, 1, "")                     \
  X(INVALID_ARGUMENT, 2, "InvalidArgument") \
  X(TIMEOUT, 3, "Timeout")                  \
  X(PEER_LOST, 4, "PeerLost")               \
  X(PEER_UNREACHABLE, 5, "PeerUnreachable") \
  X(ABORTED, 6, "Aborted")                  \
  X(MISMATCH, 7, "Mismatch")                \
  X(INTERNAL, 8, "InternalError")           \
  X(AGAIN, 9, "")

#ifdef __cplusplus
extern "C" {
#endif

#define R2CCL_API __attribute__((visibility("default")))

#define X(name, number, cls) R2CCL_##name = number,
typedef enum r2ccl_status { R2CCL_STATUS_LIST(X) } r2ccl_status;
#undef X

typedef struct r2ccl_engine r2ccl_engine;
typedef struct r2ccl_plan r2ccl_plan;
typedef struct r2ccl_device r2ccl_device;  // see device.h

// Settings of one engine; see r2ccl/config.py for their meaning.
typedef struct r2ccl_settings {
  int32_t rank;
  int32_t size;
  uint64_t chunk_bytes;
  uint64_t staging_bytes;
  uint64_t eager_bytes;
  uint64_t spin_ns;
  uint64_t stall_floor_ns;
  uint64_t heartbeat_ns;  // 0: idle links are not asked for signs of life
  uint64_t outage_ns;
  double stall_factor;
  int32_t failover;
  int32_t yield_when_spinning;  // more local ranks than processors
  uint64_t trace_records;       // size of the trace's ring; 0: no trace
  const char* fault_script;     // faults the transport injects, one a line; may be empty
  uint64_t register_bytes;      // most that the registrations of the program's memory may pin, of all devices together
  const char* verbs_library;    // libibverbs, or what stands in for it; empty: libibverbs.so.1
  uint8_t rdma_service_level, rdma_traffic_class;  // of the packets of queue pairs
  r2ccl_device* device;                            // where buffers lie; it outlives the engine. NULL: the host
} r2ccl_settings;

// The layout of a plan and of the call that runs it. Arrays are read during the call only.
typedef struct r2ccl_plan_desc {
  uint32_t lanes;
  uint32_t op_count;
  uint32_t dep_count;
  uint32_t blocks;          // of space 0 and space 1 alike
  uint32_t split[2];        // parts per block, of space 0 and 1
  uint32_t recv_space;      // 0, or 1 for all-to-all
  int32_t wide;             // SCRATCH is of the accumulation type
  int32_t paced;            // what goes to other hosts advances in proportion
  uint32_t window[3][2];    // [buffer][first, end): parts that SEND, RECV and SCRATCH hold
  const uint64_t* weights;  // cumulative, blocks + 1 entries
  const r2ccl_op* ops;
  const r2ccl_dep* deps;
} r2ccl_plan_desc;

// What a call is, for the comparison between ranks and for messages.
typedef struct r2ccl_call_info {
  uint64_t count;  // elements of space 0 (of one block where counts are given)
  int32_t root;
  uint8_t collective;
  uint8_t dtype;
  uint8_t op;
  uint8_t flags;  // 1: counts are given (a _v call)
} r2ccl_call_info;

typedef struct r2ccl_call_args {
  r2ccl_call_info info;
  const r2ccl_plan* plan;
  const void* send;
  void* recv;
  uint64_t count[2];        // elements of space 0 and 1
  const uint64_t* cuts[2];  // optional: blocks + 1 element offsets, instead of the weights
  uint64_t chunk_bytes;     // upper limit for this call, the same on all ranks
  uint32_t avg_ranks;       // divisor of AVG, else 0
  int32_t peer;             // send and recv: the other rank; else -1
  uint32_t epoch;           // for which the plan was made
  // On a device with streams only.
  int32_t on_stream;    // the call begins when `stream` has come so far
  int32_t hold;         // and what is put on the stream afterwards waits for its end
  uint32_t keep_flags;  // R2CCL_KEEP_*
  void* stream;
  void* keep;           // what the call overwrites of its input: copied before it begins
  uint64_t keep_bytes;  // 0: nothing is kept
  uint64_t timeout_ns;  // after it has begun the engine fails; 0: never
} r2ccl_call_args;

#define R2CCL_KEEP_SEND 1u     // the copy is what the call sends from
#define R2CCL_KEEP_RESTORE 2u  // if the call fails, the copy is put back

typedef struct r2ccl_event {
  uint64_t time_ns;  // CLOCK_REALTIME
  uint32_t kind;     // see observe/events.py
  int32_t peer;
  int32_t rail;
  uint32_t detail;
  uint64_t value;
} r2ccl_event;

typedef struct r2ccl_counters {
  uint64_t calls, chunks_sent, chunks_received, replayed_chunks, duplicate_chunks, repairs, repair_ns, last_repair_ns,
      events_dropped, staging_bytes, refused_frames, hedged_chunks, relayed_chunks, forwarded_chunks, window_chunks;
} r2ccl_counters;

typedef struct r2ccl_link_stats {
  int32_t peer;
  int32_t rail;
  uint32_t state;  // 0 up, 1 suspect, 2 down, 3 in probation
  uint32_t generation;
  uint64_t tx_bytes, rx_bytes, replayed_bytes;
  uint32_t direct;  // what arrives is written to the device's memory
} r2ccl_link_stats;

// What is known of the rails at the two ends of a failed link: 0 nothing, 1 alive, 2 dead.
typedef struct r2ccl_probe {
  int32_t peer;
  uint32_t link;
  uint32_t mine, theirs;
} r2ccl_probe;
// A rank to which another control socket is wanted. reset: the one before was closed, by the network or by the rank's
// end.
typedef struct r2ccl_quiet_peer {
  int32_t peer;
  int32_t reset;
} r2ccl_quiet_peer;
#define R2CCL_NOTE_BYTES 4096
// One line of a trace; kinds and what else the fields hold: exec/trace.h.
typedef struct r2ccl_trace_record {
  uint64_t time_ns;  // CLOCK_MONOTONIC
  uint64_t call;
  uint64_t value;  // of a chunk: its lane
  uint32_t message;
  uint32_t chunk;
  uint32_t bytes;
  int32_t peer;
  int32_t rail;  // -1: not known
  uint16_t kind;
  uint16_t detail;
} r2ccl_trace_record;

R2CCL_API const char* r2ccl_status_name(int32_t status);

R2CCL_API r2ccl_engine* r2ccl_engine_create(const r2ccl_settings* settings);
// Functions that return int32_t return a r2ccl_status.
// Rails and links are added before r2ccl_engine_start; the engine takes ownership of the descriptors.
// ifindex 0, address empty: not watched.
R2CCL_API int32_t r2ccl_add_rail(r2ccl_engine*, uint32_t rail, const char* name, uint32_t ifindex, const char* address,
                                 double weight);
// fd -1: a link that could not be connected yet; r2ccl_reopen_link may bring it.
R2CCL_API int32_t r2ccl_add_tcp_link(r2ccl_engine*, int32_t peer, uint32_t rail, int fd);
// The RDMA port of a rail; gid_index -1: none (InfiniBand within a subnet). Also later, when it has changed.
R2CCL_API int32_t r2ccl_set_rail_port(r2ccl_engine*, uint32_t rail, const char* device, uint32_t port,
                                      int32_t gid_index);
// NICs write what arrives over the rail's queue pairs to the device's memory, where they can. Before links are made.
R2CCL_API void r2ccl_set_rail_direct(r2ccl_engine*, uint32_t rail, int32_t direct);
// Over the rail's RDMA port; fd is a TCP connection between the rails, which carries the handshake.
R2CCL_API int32_t r2ccl_add_verbs_link(r2ccl_engine*, int32_t peer, uint32_t rail, int fd);
R2CCL_API int32_t r2ccl_add_shm_link(r2ccl_engine*, int32_t peer, int memfd, uint64_t ring_bytes, int32_t lower);
R2CCL_API int32_t r2ccl_add_control(r2ccl_engine*, int32_t peer, int fd, int32_t same_host);
// Which host a peer is on: ranks of one host have the same number.
R2CCL_API int32_t r2ccl_set_host(r2ccl_engine*, int32_t peer, int32_t host);
// How chunks for a peer divide over its links: (links + 1) x links fractions, healthy, then after the loss of each.
R2CCL_API int32_t r2ccl_set_shares(r2ccl_engine*, int32_t peer, const double* rows, uint32_t links);
// Between GPUs of one host: memory of this rank's device (from r2ccl_device_allocate, r2ccl_window_bytes long; the
// engine releases it) that the peer's device may write, and the peer's as this rank's device reaches it; NULL: none. 0
// bytes: no window with this peer.
R2CCL_API uint64_t r2ccl_window_bytes(r2ccl_engine*, int32_t peer);
R2CCL_API int32_t r2ccl_set_window(r2ccl_engine*, int32_t peer, void* own, void* theirs);
// How many rails each rank has (size entries): all ranks agree on their health from then on, in epochs.
R2CCL_API int32_t r2ccl_set_rails(r2ccl_engine*, const uint32_t* rails);
R2CCL_API int32_t r2ccl_engine_start(r2ccl_engine*);

R2CCL_API r2ccl_plan* r2ccl_plan_create(const r2ccl_plan_desc* desc, int32_t size);
R2CCL_API void r2ccl_plan_destroy(r2ccl_plan*);

// Submits a call; *ticket names it. Returns OK or the error the engine is in; or AGAIN, and nothing was submitted: the
// call must be planned for epoch *ticket; UINT64_MAX: ranks are agreeing on one, r2ccl_wait_thaw waits for it.
R2CCL_API int32_t r2ccl_submit(r2ccl_engine*, const r2ccl_call_args*, int32_t will_wait, uint64_t* ticket);
// Drives progress or sleeps until the call is done or slice_ns passed (then IN_PROGRESS). A final status frees the
// ticket.
R2CCL_API int32_t r2ccl_wait(r2ccl_engine*, uint64_t ticket, uint64_t slice_ns, uint32_t* replayed);
R2CCL_API int32_t r2ccl_test(r2ccl_engine*, uint64_t ticket);
// 1: collectives may begin, or the engine is in an error; 0: slice_ns has passed.
R2CCL_API int32_t r2ccl_wait_thaw(r2ccl_engine*, uint64_t slice_ns);
// Whose answer the agreement waits for, as text.
R2CCL_API size_t r2ccl_describe_freeze(r2ccl_engine*, char* buffer, size_t size);
R2CCL_API uint32_t r2ccl_epoch(r2ccl_engine*);
// Health of all rails in an epoch that calls may still need: a byte each, by rank and rail; 0 not usable, 255 whole.
// Returns how many; 0: the epoch is not known.
R2CCL_API size_t r2ccl_health(r2ccl_engine*, uint32_t epoch, uint8_t* out, size_t capacity);
// Nobody will wait for the ticket: it is freed when the call is done.
R2CCL_API void r2ccl_detach(r2ccl_engine*, uint64_t ticket);
// Of a call that was ordered on a stream: what is put on this other one from now on waits until the call has ended,
// well or not. INVALID_ARGUMENT: the stream cannot be held.
R2CCL_API int32_t r2ccl_hold(r2ccl_engine*, uint64_t ticket, void* stream);

// Text of the error the engine is in, or of what a running call waits for (ticket 0: the collective
// under way, if any); returns the length written.
R2CCL_API size_t r2ccl_error_text(r2ccl_engine*, char* buffer, size_t size);
R2CCL_API size_t r2ccl_describe(r2ccl_engine*, uint64_t ticket, char* buffer, size_t size);
R2CCL_API int32_t r2ccl_engine_status(r2ccl_engine*);

R2CCL_API void r2ccl_abort(r2ccl_engine*, const char* reason);
R2CCL_API void r2ccl_counters_read(r2ccl_engine*, r2ccl_counters*);
R2CCL_API uint32_t r2ccl_links_read(r2ccl_engine*, r2ccl_link_stats*, uint32_t capacity);
// The slow loop's part in recovery: sleep until links went down or rails changed (at most timeout_ns; returns how many
// links are down), and hand over a new connection for link `link` (its place among the links to the peer).
R2CCL_API uint32_t r2ccl_wait_links_down(r2ccl_engine*, uint64_t timeout_ns);
R2CCL_API int32_t r2ccl_reopen_link(r2ccl_engine*, int32_t peer, uint32_t link, int fd);
// The rail's interface was removed and added again, or has another address.
R2CCL_API void r2ccl_set_rail_identity(r2ccl_engine*, uint32_t rail, uint32_t ifindex, const char* address);
// Failed links whose rails no other link can vouch for: the slow loop tries connections across rails, and reports with
// mine and theirs filled in. Whoever calls the first one is expected to report within a second.
R2CCL_API uint32_t r2ccl_take_probes(r2ccl_engine*, r2ccl_probe*, uint32_t capacity);
R2CCL_API void r2ccl_report_probe(r2ccl_engine*, const r2ccl_probe*);
// Messages between the slow loops of two ranks, at most R2CCL_NOTE_BYTES each; r2ccl_take_note returns the length, 0
// when there is none. They may come twice.
R2CCL_API void r2ccl_post_note(r2ccl_engine*, int32_t peer, const void* bytes, uint32_t size);
R2CCL_API uint32_t r2ccl_take_note(r2ccl_engine*, int32_t* peer, void* bytes);
// Memory that NICs may read where it lies, from now until it is taken back as often; the caller keeps it till then.
// Without it chunks are copied on their way. unregister: INVALID_ARGUMENT when it was not registered.
R2CCL_API int32_t r2ccl_register(r2ccl_engine*, const void* memory, size_t bytes);
R2CCL_API int32_t r2ccl_unregister(r2ccl_engine*, const void* memory, size_t bytes);
// Why queue pairs cannot be made on an RDMA port; returns the length, 0: they can.
R2CCL_API size_t r2ccl_try_port(const char* library, const char* device, uint32_t port, int32_t gid_index, char* buffer,
                                size_t size);
// What the program's log should say of devices and limits; returns the length, 0 when there is nothing.
R2CCL_API size_t r2ccl_take_warning(r2ccl_engine*, char* buffer, size_t size);
// Ends a wait of the slow loop.
R2CCL_API void r2ccl_wake_slow_loop(r2ccl_engine*);
// The slow loop knows that the process of a rank has ended.
R2CCL_API void r2ccl_peer_ended(r2ccl_engine*, int32_t peer);
// Ranks whose control sockets are closed, or silent while no link is left; how many there are. A socket that the slow
// loop has connected for one of them takes the place of the old one.
R2CCL_API uint32_t r2ccl_quiet_peers(r2ccl_engine*, r2ccl_quiet_peer* out, uint32_t capacity);
R2CCL_API int32_t r2ccl_adopt_control(r2ccl_engine*, int32_t peer, int fd);
// The ranks that ended or closed their communicators, as far as this rank knows; how many there are.
R2CCL_API uint32_t r2ccl_lost_ranks(r2ccl_engine*, int32_t* out, uint32_t capacity);
R2CCL_API uint32_t r2ccl_events_read(r2ccl_engine*, r2ccl_event*, uint32_t capacity);
// The last events, taken or not, oldest first; takes none.
R2CCL_API uint32_t r2ccl_events_recent(r2ccl_engine*, r2ccl_event*, uint32_t capacity);
// Where every rank stands: a JSON list of reports, within about timeout_ns (0: of this rank alone). Frees: r2ccl_free.
R2CCL_API char* r2ccl_survey(r2ccl_engine*, uint64_t timeout_ns, size_t* size);
// The trace so far, oldest first; *count records, *dropped older ones are lost. Frees: r2ccl_free.
R2CCL_API r2ccl_trace_record* r2ccl_trace_read(r2ccl_engine*, size_t* count, uint64_t* dropped);
R2CCL_API void r2ccl_free(void* memory);
// Bounded: says goodbye to the peers, lets pending output drain for at most linger_ns, joins the thread, frees all.
R2CCL_API void r2ccl_engine_destroy(r2ccl_engine*, uint64_t linger_ns);

// The host device's reduction and conversion, for tests. wide: bit 0 dst, bit 1 a, bit 2 b.
R2CCL_API int32_t r2ccl_host_reduce(void* dst, const void* a, const void* b, uint64_t count, int32_t dtype, int32_t op,
                                    uint32_t avg_ranks, int32_t wide);

#ifdef __cplusplus
}
#endif
#endif
