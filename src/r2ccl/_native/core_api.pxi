# The C interface of the core (r2ccl/r2ccl.h), as far as core.pyx uses it.

cdef extern from "r2ccl/r2ccl.h" nogil:
    ctypedef struct r2ccl_engine
    ctypedef struct r2ccl_plan
    ctypedef struct r2ccl_device
    ctypedef struct r2ccl_op
    ctypedef struct r2ccl_dep
    ctypedef struct r2ccl_settings:
        int32_t rank
        int32_t size
        uint64_t chunk_bytes
        uint64_t staging_bytes
        uint64_t eager_bytes
        uint64_t spin_ns
        uint64_t stall_floor_ns
        uint64_t heartbeat_ns
        uint64_t outage_ns
        double stall_factor
        int32_t failover
        int32_t yield_when_spinning
        uint64_t trace_records
        const char* fault_script
        uint64_t register_bytes
        const char* verbs_library
        uint8_t rdma_service_level
        uint8_t rdma_traffic_class
        r2ccl_device* device
    ctypedef struct r2ccl_plan_desc:
        uint32_t lanes
        uint32_t op_count
        uint32_t dep_count
        uint32_t blocks
        uint32_t split[2]
        uint32_t recv_space
        int32_t wide
        int32_t paced
        uint32_t window[3][2]
        const uint64_t* weights
        const r2ccl_op* ops
        const r2ccl_dep* deps
    ctypedef struct r2ccl_call_info:
        uint64_t count
        int32_t root
        uint8_t collective
        uint8_t dtype
        uint8_t op
        uint8_t flags
    ctypedef struct r2ccl_call_args:
        r2ccl_call_info info
        const r2ccl_plan* plan
        const void* send
        void* recv
        uint64_t count[2]
        const uint64_t* cuts[2]
        uint64_t chunk_bytes
        uint32_t avg_ranks
        int32_t peer
        uint32_t epoch
        int32_t on_stream
        int32_t hold
        uint32_t keep_flags
        void* stream
        void* keep
        uint64_t keep_bytes
        uint64_t timeout_ns
    ctypedef struct r2ccl_event:
        uint64_t time_ns
        uint32_t kind
        int32_t peer
        int32_t rail
        uint32_t detail
        uint64_t value
    ctypedef struct r2ccl_counters:
        uint64_t calls, chunks_sent, chunks_received, replayed_chunks, duplicate_chunks, repairs, repair_ns
        uint64_t last_repair_ns, events_dropped, staging_bytes, refused_frames, hedged_chunks
        uint64_t relayed_chunks, forwarded_chunks, window_chunks
    ctypedef struct r2ccl_link_stats:
        int32_t peer
        int32_t rail
        uint32_t state
        uint32_t generation
        uint64_t tx_bytes, rx_bytes, replayed_bytes
        uint32_t direct
    ctypedef struct r2ccl_probe:
        int32_t peer
        uint32_t link
        uint32_t mine
        uint32_t theirs
    ctypedef struct r2ccl_trace_record:
        pass

    const char* r2ccl_status_name(int32_t)
    r2ccl_engine* r2ccl_engine_create(const r2ccl_settings*)
    int32_t r2ccl_add_rail(r2ccl_engine*, uint32_t, const char*, uint32_t, const char*, double)
    int32_t r2ccl_add_tcp_link(r2ccl_engine*, int32_t, uint32_t, int)
    int32_t r2ccl_add_verbs_link(r2ccl_engine*, int32_t, uint32_t, int)
    int32_t r2ccl_set_rail_port(r2ccl_engine*, uint32_t, const char*, uint32_t, int32_t)
    void r2ccl_set_rail_direct(r2ccl_engine*, uint32_t, int32_t)
    int32_t r2ccl_register(r2ccl_engine*, const void*, size_t)
    int32_t r2ccl_unregister(r2ccl_engine*, const void*, size_t)
    size_t r2ccl_try_port(const char*, const char*, uint32_t, int32_t, char*, size_t)
    size_t r2ccl_take_warning(r2ccl_engine*, char*, size_t)
    int32_t r2ccl_add_shm_link(r2ccl_engine*, int32_t, int, uint64_t, int32_t)
    int32_t r2ccl_add_control(r2ccl_engine*, int32_t, int, int32_t)
    int32_t r2ccl_set_host(r2ccl_engine*, int32_t, int32_t)
    int32_t r2ccl_set_shares(r2ccl_engine*, int32_t, const double*, uint32_t)
    int32_t r2ccl_set_rails(r2ccl_engine*, const uint32_t*)
    uint64_t r2ccl_window_bytes(r2ccl_engine*, int32_t)
    int32_t r2ccl_set_window(r2ccl_engine*, int32_t, void*, void*)
    int32_t r2ccl_engine_start(r2ccl_engine*)
    r2ccl_plan* r2ccl_plan_create(const r2ccl_plan_desc*, int32_t)
    void r2ccl_plan_destroy(r2ccl_plan*)
    int32_t r2ccl_submit(r2ccl_engine*, const r2ccl_call_args*, int32_t, uint64_t*)
    int32_t r2ccl_wait(r2ccl_engine*, uint64_t, uint64_t, uint32_t*)
    int32_t r2ccl_wait_thaw(r2ccl_engine*, uint64_t)
    size_t r2ccl_describe_freeze(r2ccl_engine*, char*, size_t)
    uint32_t r2ccl_epoch(r2ccl_engine*)
    size_t r2ccl_health(r2ccl_engine*, uint32_t, uint8_t*, size_t)
    int32_t r2ccl_test(r2ccl_engine*, uint64_t)
    void r2ccl_detach(r2ccl_engine*, uint64_t)
    int32_t r2ccl_hold(r2ccl_engine*, uint64_t, void*)
    size_t r2ccl_error_text(r2ccl_engine*, char*, size_t)
    size_t r2ccl_describe(r2ccl_engine*, uint64_t, char*, size_t)
    int32_t r2ccl_engine_status(r2ccl_engine*)
    void r2ccl_abort(r2ccl_engine*, const char*)
    void r2ccl_counters_read(r2ccl_engine*, r2ccl_counters*)
    uint32_t r2ccl_links_read(r2ccl_engine*, r2ccl_link_stats*, uint32_t)
    uint32_t r2ccl_wait_links_down(r2ccl_engine*, uint64_t)
    int32_t r2ccl_reopen_link(r2ccl_engine*, int32_t, uint32_t, int)
    void r2ccl_wake_slow_loop(r2ccl_engine*)
    void r2ccl_peer_ended(r2ccl_engine*, int32_t)
    ctypedef struct r2ccl_quiet_peer:
        int32_t peer
        int32_t reset

    uint32_t r2ccl_quiet_peers(r2ccl_engine*, r2ccl_quiet_peer*, uint32_t)
    int32_t r2ccl_adopt_control(r2ccl_engine*, int32_t, int)
    uint32_t r2ccl_lost_ranks(r2ccl_engine*, int32_t*, uint32_t)
    void r2ccl_set_rail_identity(r2ccl_engine*, uint32_t, uint32_t, const char*)
    uint32_t r2ccl_take_probes(r2ccl_engine*, r2ccl_probe*, uint32_t)
    void r2ccl_report_probe(r2ccl_engine*, const r2ccl_probe*)
    void r2ccl_post_note(r2ccl_engine*, int32_t, const void*, uint32_t)
    uint32_t r2ccl_take_note(r2ccl_engine*, int32_t*, void*)
    uint32_t r2ccl_events_read(r2ccl_engine*, r2ccl_event*, uint32_t)
    uint32_t r2ccl_events_recent(r2ccl_engine*, r2ccl_event*, uint32_t)
    char* r2ccl_survey(r2ccl_engine*, uint64_t, size_t*)
    r2ccl_trace_record* r2ccl_trace_read(r2ccl_engine*, size_t*, uint64_t*)
    void r2ccl_free(void*)
    void r2ccl_engine_destroy(r2ccl_engine*, uint64_t)
    int32_t r2ccl_host_reduce(void*, const void*, const void*, uint64_t, int32_t, int32_t, uint32_t, int32_t)

    enum:
        R2CCL_NOTE_BYTES
        R2CCL_KEEP_SEND
        R2CCL_KEEP_RESTORE
        R2CCL_OK
        R2CCL_IN_PROGRESS
        R2CCL_INVALID_ARGUMENT
        R2CCL_TIMEOUT
        R2CCL_PEER_LOST
        R2CCL_PEER_UNREACHABLE
        R2CCL_ABORTED
        R2CCL_MISMATCH
        R2CCL_INTERNAL
        R2CCL_AGAIN
