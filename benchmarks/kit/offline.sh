#!/bin/bash
# On the GPU machine:  . benchmarks/kit/offline.sh RELEASE FOLDER
#
# Unpacks the kit of that SGLang release to FOLDER once, puts it and this checkout of specswitch (or the one that
# BENCH_CHECKOUT names) on PYTHONPATH, and keeps what servers compile in FOLDER/compiled.  FOLDER/compiled as a tar.xz beside the kit (compiled.tar.xz) saves a
# fresh machine the first compilation; it is good for the same kit and the same FOLDER alone.

_kit_unpack() {
    local kit=$1 folder=$2 checkout=$3
    mkdir -p "$folder/lib" "$folder/compiled" "$folder/plugin/specswitch-0.dist-info" || return 1
    tar --sparse -xJf "$kit/kit.tar.xz" -C "$folder" || return 1
    [ ! -e "$kit/compiled.tar.xz" ] || tar -xJf "$kit/compiled.tar.xz" -C "$folder"
    python3 -m compileall -q -j 0 "$folder/site" >/dev/null 2>&1
    ln -sfn "$checkout/specswitch" "$folder/plugin/specswitch"
    # the entry point through which SGLang finds the plugin
    printf 'Metadata-Version: 2.1\nName: specswitch\nVersion: 0\n' >"$folder/plugin/specswitch-0.dist-info/METADATA"
    python3 -c 'import sys, tomllib
for group, points in tomllib.load(open(sys.argv[1], "rb"))["project"]["entry-points"].items():
    print(f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), sep="\n")' \
        "$checkout/pyproject.toml" >"$folder/plugin/specswitch-0.dist-info/entry_points.txt" || return 1
    # sgl_kernel links libnuma for transfers between machines; where it is missing, one that says "no NUMA" will do
    if ! ldconfig -p | grep -q 'libnuma\.so\.1'; then
        printf 'libnuma_1.1 { global: numa_available; };\nlibnuma_1.2 { global: *; };\n' >"$folder/lib/numa.map"
        printf 'int numa_available(void) { return -1; }\n%s\n' \
            'int numa_num_configured_nodes(void) { return 1; } void *numa_allocate_nodemask(void) { return 0; }' \
            'void *numa_bitmask_clearall(void *m) { return m; } void numa_bitmask_free(void *m) { (void)m; }' \
            'void numa_bind(void *m) { (void)m; } void copy_nodemask_to_bitmask(void *a, void *b) { (void)a; (void)b; }' |
            gcc -shared -fPIC -xc - -o "$folder/lib/libnuma.so.1" -Wl,-soname,libnuma.so.1 \
                "-Wl,--version-script=$folder/lib/numa.map" || return 1
    fi
    touch "$folder/unpacked"
}

_kit_enter() {
    local checkout kit folder
    checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    kit=$checkout/benchmarks/.kit/$1
    folder=$2
    [ -e "$folder/unpacked" ] || _kit_unpack "$kit" "$folder" "${BENCH_CHECKOUT:-$checkout}" || return 1
    if [ -z "$CUDA_HOME" ] && [ -d /usr/local/cuda ]; then
        export CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH
    fi
    export PYTHONPATH=$folder/site:$folder/plugin${PYTHONPATH:+:$PYTHONPATH}
    export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export TRITON_CACHE_DIR=$folder/compiled/triton TVM_FFI_CACHE_DIR=$folder/compiled/tvm-ffi
    export FLASHINFER_WORKSPACE_BASE=$folder/compiled/flashinfer SGLANG_ENABLE_JIT_DEEPGEMM=0
    export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONUNBUFFERED=1
}

_kit_enter "${1:?usage: . offline.sh RELEASE FOLDER}" "${2:?usage: . offline.sh RELEASE FOLDER}"
