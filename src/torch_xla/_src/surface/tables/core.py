"""Rows of torch_xla, torch_xla.runtime and torch_xla.core: see Note [Public surface]."""

TABLE = """
# torch_xla
must works __version__
must works device(index=None)
must works devices()
must works real_devices()
must works device_count()
must works sync(wait=False, reset_scope=True)
must works step()
must works compile(f=None, full_graph=False, name=None, max_different_graphs=None, custom_compile_options=None)
must works manual_seed(seed, device=None)
must works launch(fn, args=(), start_method='spawn', debug_single_process=False)
rare absent set_custom_compile_options(options) : pass them to XLA through XLA_FLAGS
should waits:export save_as_stablehlo(exported_program, stablehlo_dir, options=None)
should waits:export save_torch_model_as_stablehlo(torchmodel, args, path, options=None)
should works logger
should works _found_libtpu

# torch_xla.runtime
must works device_type()
should works set_device_type(pjrt_device)
must works world_size()
must works global_ordinal()
must works local_ordinal()
must works local_process_count()
must works local_device_count()
must works addressable_device_count()
must works global_device_count()
must works global_runtime_device_count()
must works addressable_runtime_device_count()
must works process_index()
must works process_count()
must works host_index()
must waits:sharding use_spmd(auto=False)
must works is_spmd()
should works global_runtime_device_attributes()
should works runtime_device_attributes(device)
rare works get_master_ip()
must works initialize_cache(path, readonly=False)
should works get_num_cached_compilation_graph()
should works is_bf16_supported()
should deprecated using_pjrt()
should deprecated xla_device(n=None, devkind=None)
should deprecated requires_pjrt(fn)

# torch_xla.core.xla_model
must deprecated xla_device(n=None, devkind=None)
must deprecated mark_step(wait=False, reset_scope=True)
must works get_xla_supported_devices(max_devices=None)
must works xla_device_hw(device)
should works xla_device_kind(device=None)
should works xla_real_devices(devices=None)
should works xla_replication_devices(local_devices=None)
must works is_master_ordinal(local=True)
must works master_print(*args, fd=None, local=False, flush=False)
must works get_local_ordinal()
must works is_xla_tensor(tensor)
must works REDUCE_SUM
must works REDUCE_MUL
must works REDUCE_AND
must works REDUCE_OR
must works REDUCE_MIN
must works REDUCE_MAX
must works all_reduce(reduce_type, inputs, scale=1.0, groups=None, pin_layout=True)
must works all_gather(value, dim=0, groups=None, output=None, pin_layout=True, channel_id=None,\
    use_global_device_ids=None)
rare absent all_gather_bucketized(input_list, dim=0, groups=None, output=None, pin_layout=False,\
    bucket_cap_mb=160) : all_gather takes a list
rare absent reduce_scatter_bucketized(reduce_type, input_list, scale, scatter_dim, shard_count, groups=None,\
    output=None, pin_layout=False, bucket_cap_mb=160) : reduce_scatter takes a list
rare absent class CoalescingBuckets(func, input_list, output_list=None, bucket_cap_mb=160)
must works reduce_scatter(reduce_type, input, scale, scatter_dim, shard_count, groups=None, output=None,\
    pin_layout=True, channel_id=None, use_global_device_ids=None)
should works all_to_all(value, split_dimension, concat_dimension, split_count, groups=None, pin_layout=True)
should works collective_permute(value, pairs)
must works collective_broadcast(tensors, root_ordinal=0, groups=None, pin_layout=True)
must works broadcast_master_param(model)
rare absent send(value, channel_id) : use collective_permute
rare absent recv(output, channel_id) : use collective_permute
must works reduce_gradients(optimizer, groups=None, pin_layout=True)
rare absent all_reduce_bucketized_gradients(gradients, scale, groups, pin_layout,\
    bucket_cap_mb=0) : reduce_gradients does it
must works optimizer_step(optimizer, barrier=False, optimizer_args={}, groups=None, pin_layout=True)
must works add_step_closure(closure, args=(), run_async=False)
must works wait_device_ops(devices=[])
must works save(data, file_or_path, master_only=True, global_master=False)
must works send_cpu_data_to_device(datas, device, input_sharding=None)
must works rendezvous(tag, payload=b'', replicas=[])
must works xla_rendezvous(payload=b'', ordinals=None, tag=None)
rare works do_on_ordinals(target, data=(), ordinals=(0,))
must works mesh_reduce(tag, data, reduce_fn)
must works set_rng_state(seed, device=None)
must works get_rng_state(device=None)
must works fork_rng(device=None, enabled=True)
must works get_memory_info(device=None)
should works optimization_barrier_(tensors)
must works get_stablehlo(tensors=None)
must works get_stablehlo_bytecode(tensors=None)
should works unlazy(tensors)
must works set_replication(device, devices)
should works check_view_sharing(obj)
should works class ToXlaTensorArena(convert_fn, select_fn)
must works class RateTracker(smooth_factor=None)
must works _fetch_gradients(optimizer)
must works _maybe_convert_to_cpu(data, convert=True)
should works _run_step_closures()
should absent _get_device_context() : there is no context per device
should absent _DEVICES : use torch_xla.real_devices()
should works XLA_LIB
must deprecated xrt_world_size(defval=1)
must deprecated get_ordinal(defval=0)
should deprecated parse_xla_device(device)
must works xla_env_vars

# torch_xla.core.functions
must works all_reduce(reduce_type, value, scale=1.0, groups=None)
must works all_gather(value, dim=0)
should works class SyncBatchNorm(num_features, eps=1e-05, momentum=0.1)
should works distributed_mm(w, x, split=1)
should works class AllReduce
should works class AllGather
should works class AllReduceSumLayer
should absent nms(boxes, scores, score_threshold, iou_threshold, output_size) : use torchvision.ops.nms

# torch_xla.core.xla_builder
must works call_jax(jax_func, args, kwargs=None, name=None, override_hash=None)
should works class Type
should works class Shape(shape)
should works class Op(op)
should works create_builder(name)
should works mkshape(dtype, sizes, dynamic_dimensions=None)
should works mkop(name, ops, **kwargs)
should works mkleaf(name, builder, **kwargs)
should works mkparam(builder, param_no, shape)
should works tensor_shape(tensor, device='')
should works create_computation(name, fn, shapes, **kwargs)
should works get_computation_hlo(computation)
should works xla_computation_as_func(computation, name=None)
should waits:export computation_from_module_proto(name, proto)
rare absent class JaxCallable(jax_func) : use call_jax
rare absent class XlaCallable(xla_func) : use xla_computation_as_func
rare absent class FlattenedInputFunc(orig_func)
rare absent class CompiledCallableWithCache(flat_input_func)
rare absent create_placeholder_tensor(shape, dtype)

# torch_xla.core.xla_op_registry
should works register(name, opfn)
should works class Op(name, opfn)

# torch_xla.core.dynamo_bridge
must works extract_compiled_graph(xla_model, xla_args)
rare absent class NoneRemover()
rare absent class GraphInputMatcher(tensor_id_to_arg_idx, graph_input_tensor_ids, graph_input_xla_values,\
    xla_args_tensor_id)
rare absent class SpecialReturnHandler(trace_inputs, trace_outputs, trace_inputs_inplace_update_bool,\
    constant_outputs_and_indexes)

# torch_xla._dynamo.dynamo_bridge
must works extract_compiled_graph(xla_model, xla_args)

# torch_xla._dynamo.config
should works skip_input_data_check

# torch_xla._dynamo.dynamo_backend2
should works dynamo_backend(fx, args)
"""

_ENVIRONMENT = """
CLOUD_TPU_TASK_ID CPU_NUM_DEVICES LOCAL_RANK LOCAL_WORLD_SIZE PJRT_CPU_ASYNC_CLIENT PJRT_DEVICE PJRT_DIST_SERVICE_ADDR
PJRT_DYNAMIC_PLUGINS PJRT_LOCAL_PROCESS_COUNT PJRT_LOCAL_PROCESS_RANK PJRT_SELECT_DEFAULT_DEVICE RANK WORLD_SIZE TPUVM_MODE
ACCELERATOR_TYPE TPU_ACCELERATOR_TYPE TPU_CHIPS_PER_HOST_BOUNDS TPU_CHIPS_PER_PROCESS_BOUNDS TPU_HOST_BOUNDS
TPU_MESH_CTLER_ADDR TPU_MESH_CTLER_PORT TPU_NUM_DEVICES TPU_PROCESS_ADDRESSES TPU_PROCESS_BOUNDS TPU_PROCESS_PORT
TPU_SKIP_MDS_QUERY TPU_VISIBLE_CHIPS TPU_WORKER_HOSTNAMES TPU_WORKER_ID WORKER_ID
"""
TABLE += "# torch_xla.core.xla_env_vars\n" + "\n".join(f"should works {name}" for name in _ENVIRONMENT.split())
