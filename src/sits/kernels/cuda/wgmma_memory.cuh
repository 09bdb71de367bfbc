// Hopper's asynchronous parts for wgmma_linear.cu: barriers, bulk copies, named barriers, 16-bit conversions. Compile-time: BF16, CK.

static __device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ void barrier_init(u32 b, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
static __device__ __forceinline__ void expect_bytes(u32 b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void barrier_wait(u32 b, u32 parity) {
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}"
                 ::"r"(b), "r"(parity) : "memory");
}
static __device__ __forceinline__ void arrive(u32 b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
// Across the cluster: what was written to the other CTA before the arrival is seen after the wait.
static __device__ __forceinline__ u32 remote_address(u32 at, u32 cta) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(cta));
    return remote;
}
[[maybe_unused]] static __device__ __forceinline__ void arrive_remote(u32 b, u32 cta) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_address(b, cta)) : "memory");
}
[[maybe_unused]] static __device__ __forceinline__ void barrier_wait_cluster(u32 b, u32 parity) {
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\n"
                 "bra WAIT;\nDONE:\n}" ::"r"(b), "r"(parity) : "memory");
}
static __device__ __forceinline__ void copy_weights(u32 to, const void* from, u32 full, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(WEIGHT_BYTES), "r"(full), "l"(policy) : "memory");
}
static __device__ __forceinline__ void copy_x(u32 to, const TensorMap* map, int chunk, int row, u32 full) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(map), "r"(0), "r"(row), "r"(chunk), "r"(full) : "memory");
}
static __device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
enum { PARTIALS_READY = 1, PARTIALS_READ = 3, WARPGROUP = 5, ALL_CONSUMERS = 7 };  // named barriers; the first three by row tile
static __device__ __forceinline__ void sync_named(int id, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
[[maybe_unused]] static __device__ __forceinline__ void arrive_named(int id, int count) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}
static __device__ __forceinline__ void cluster_sync() {
#if CK > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

static __device__ __forceinline__ u32 fused(u32 a, u32 b, u32 c) {
    u32 v; asm("fma.rn." HALF_PAIR " %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c)); return v;
}
[[maybe_unused]] static __device__ __forceinline__ u32 product(u32 a, u32 b) {
    u32 v; asm("mul.rn." HALF_PAIR " %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b)); return v;
}

static __device__ __forceinline__ u32x4 load_shared(u32 at) {
    u32x4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d) : "r"(at) : "memory");
    return v;
}
[[maybe_unused]] static __device__ __forceinline__ u32x4 load_global(const void* p) {  // written by the kernel before: not through .nc
    u32x4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d) : "l"(p) : "memory");
    return v;
}
