"""Rows of torch_xla.experimental: see Note [Public surface]."""

TABLE = """
# torch_xla.experimental
must works eager_mode(enable)
must works is_eager_mode()
must works eager_mode_context(enable)
should deprecated compile(f=None, full_graph=False, name=None, max_different_graphs=None, custom_compile_options=None)

# torch_xla.experimental.eager
must works eager_mode(enable)
must works is_eager_mode()
must works eager_mode_context(enable)

# torch_xla.experimental.scan
must works scan(fn, init, xs, partition_fn=default_partition, is_fn_pure=False)
must waits:partitions value_and_grad_partitioned(fn, init, xs, partition_fn=default_partition, is_fn_pure=True)
rare absent split(seq, *part_lengths)

# torch_xla.experimental.scan_layers
must works scan_layers(layers, input_data, partition_fn=default_partition, is_layer_pure=False)

# torch_xla.experimental.fori_loop
should works fori_loop(lower, upper, body_fun, *input_value)
should works while_loop(cond_fn, body_fn, carried_inputs, additional_inputs=None)

# torch_xla.experimental.gradient_accumulation
should works gradient_accumulation(train_step, iterable_tensors, model, *carried_tensors)

# torch_xla.experimental.assume_pure
must works assume_pure(fn, *, add_rng_seed_argument=False)
must works class PureModule(module)
must works assume_pure_torch(func, use_cache=False)
must works j2t_autograd(fn)

# torch_xla.experimental.custom_kernel
must waits:kernels flash_attention(q, k, v, causal=False, q_segment_ids=None, kv_segment_ids=None, sm_scale=1.0, *,\
    ab=None, partition_spec=None, mesh=None)
should waits:kernels class FlashAttention
should waits:kernels paged_attention(q, k_pages, v_pages, lengths, page_indices, pages_per_compute_block,\
    megacore_mode=None, attn_logits_soft_cap=None)
should waits:kernels multi_queries_paged_attention(q, k_pages, v_pages, lengths, page_indices, effective_q_lens,\
    num_kv_pages_per_compute_block, num_queries_per_compute_block, use_kernel=True, attn_logits_soft_cap=None)
should waits:kernels ragged_paged_attention(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, *,\
    sm_scale=1.0, sliding_window=None, soft_cap=None, mask_value=None, k_scale=None, v_scale=None, use_kernel=True,\
    num_kv_pages_per_block=None, num_queries_per_block=None, vmem_limit_bytes=None)
should waits:kernels gmm(lhs, rhs, group_sizes, tiling=None, group_offset=None, transpose_rhs=False)
should waits:kernels tgmm(lhs, rhs, group_sizes, tiling=(512, 512, 512), group_offset=None, num_actual_groups=None)
should waits:kernels gmm_backward(grad, lhs, rhs, group_sizes, tiling=(512, 512, 512))
should waits:kernels class GMM
should waits:kernels quantized_matmul_int8(x, w, scalar, zero_point=None, quant_block_size=None,\
    quantize_activation=False, batch_block_size=None, out_block_size=None, in_block_size=None,\
    vmem_limit_bytes=67108864)
should waits:kernels repeat_with_fixed_output_size(input, repeats, total_repeat_length)
must waits:kernels make_kernel_from_pallas(kernel, output_shape_dtype_fn)
should waits:kernels trace_pallas(kernel, *args, static_argnums=None, static_argnames=None, use_cache=False, **kwargs)
should works convert_torch_dtype_to_jax(dtype)
should works to_jax_shape_dtype_struct(tensor)
must works jax_import_guard()

# torch_xla.experimental.splash_attention
should waits:kernels splash_attention(q, k, v, config, decoder_segment_ids=None, causal=True,\
    attn_logits_soft_cap=None)
should waits:kernels class SplashAttentionConfig(**kwargs)

# torch_xla.experimental.spmd_fully_sharded_data_parallel
must waits:sharding class SpmdFullyShardedDataParallel(module, *, mesh=None, shard_output=None,\
    auto_wrap_policy=None, auto_wrapper_callable=None, extra_data_axis=None)

# torch_xla.experimental.distributed_checkpoint
must waits:sharding class CheckpointManager(path, save_interval, max_to_keep=0, max_pending_async=1,\
    num_of_threads=1, process_group=None, chkpt_on_preemption=True)
must waits:sharding class SPMDSavePlanner()
must waits:sharding class SPMDLoadPlanner()
must waits:sharding prime_optimizer(optimizer)

# torch_xla.experimental.stablehlo_custom_call
should waits:export stablehlo_custom_call(args, call_target, output_shapes, output_dtypes, has_side_effect=False,\
    backend_config='', api_version=0, frontend_attributes=None)
must works place_to_host(t)
must works place_to_device(t)
rare absent extract_custom_call_outputs_shape_dtype(n)

# torch_xla.experimental.xla_quantized_matmul
should waits:kernels quantized_matmul(x, w, scaler, zero_point=None, block_size=-1, int4_weight=False,\
    quantize_activation=False)
should waits:kernels class XlaQuantizedLinear(input_dim, output_dim, is_symmetric=False, block_size=-1,\
    int4_weight=False, quantize_activation=False)

# torch_xla.experimental.quantized
should waits:export xla_quantize_per_tensor(input, scale, zero_point, quant_min, quant_max, dtype)
should waits:export xla_dequantize_per_tensor(input, scale, zero_point, quant_min, quant_max, dtype)

# torch_xla.experimental.mark_pattern_utils
should waits:export class StableHLOCompositeBuilder(name, attr=None)

# torch_xla.experimental.plugins
rare absent class DevicePlugin : JAX finds PJRT plugins by its own entry points
rare absent register_plugin(name, device_plugin) : JAX finds PJRT plugins by its own entry points
rare absent use_dynamic_plugins() : JAX finds PJRT plugins by its own entry points
rare absent using_dynamic_plugins() : JAX finds PJRT plugins by its own entry points
rare absent default() : JAX finds PJRT plugins by its own entry points
rare absent register_installed_plugins() : JAX finds PJRT plugins by its own entry points

# torch_xla.experimental.callback
should works on_ready_callback(tensor, callback)
should works on_ready_event(tensor)

# torch_xla.experimental.gru
should works class GRU

# torch_xla.experimental.pytreeify
should works pytreeify(cls)

# torch_xla.experimental.deprecation
rare works deprecated(module, new, old_name=None, extra_msg=None)
rare works mark_deprecated(new, extra_msg=None)
rare works register_deprecated(module, new)

# torch_xla.experimental.dynamo_mark_sharding
should waits:sharding dynamo_mark_sharding(t, device_ids, mesh_shape, axis_names, partition_spec)

# torch_xla.experimental.dynamo_set_buffer_donor
should works dynamo_set_buffer_donor_(t, should_donoate)

# torch_xla.experimental.pjrt
should deprecated world_size()
should deprecated global_ordinal()
should deprecated local_ordinal()
should deprecated device_type()
should deprecated using_pjrt()
should deprecated broadcast_master_param(model)
should deprecated rendezvous(tag, payload=b'', replicas=[])
should deprecated spawn(fn, args=(), nprocs=None, join=True, daemon=False, start_method='spawn')
should deprecated xla_device(n=None, devkind=None)

# torch_xla.experimental.tpu
should works num_available_devices()
should works get_tpu_env()
should works version()

# torch_xla.experimental.xla_sharding
should waits:sharding class Mesh(device_ids, mesh_shape, axis_names=None)
should waits:sharding mark_sharding(t, mesh, partition_spec)
should waits:sharding clear_sharding(t)
should waits:sharding class HybridMesh(*, ici_mesh_shape, dcn_mesh_shape=None, axis_names=None)
should waits:sharding class ShardingSpec(mesh, partition_spec, minibatch=False)

# torch_xla.experimental.xla_sharded_tensor
should waits:sharding class XLAShardedTensor(elem, mesh_shape=None, partition_spec=None, *args, **kwargs)
"""
