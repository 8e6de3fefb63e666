"""Rows of torch_xla.distributed: see Note [Public surface]."""

TABLE = """
# torch_xla.distributed.parallel_loader
must works class ParallelLoader(cpu_loader, devices, batchdim=0, batches_per_execution=1, loader_prefetch_size=16,\
    device_prefetch_size=8, host_to_device_transfer_threads=1, input_sharding=None)
must works class MpDeviceLoader(loader, device, **kwargs)
rare works class PerDeviceLoader(loader, device)
rare works class PerDeviceQueue(device, loader_prefetch_size, device_prefetch_size)

# torch_xla.distributed.xla_multiprocessing
must works spawn(fn, args=(), nprocs=None, join=True, daemon=False, start_method='spawn')
must works class MpModelWrapper(model)
must works class MpSerialExecutor()
rare absent create_optimized_replica_groups() : XLA chooses the order of devices

# torch_xla.distributed.xla_backend
must waits:processes class ProcessGroupXla(prefix_store, rank, size, timeout)
must waits:processes new_xla_process_group(ranks=None, timeout=None, backend=None, pg_options=None)

# torch_xla.distributed.data_parallel
should waits:processes class DataParallel(network, device_ids=None, **kwargs)
should waits:processes class Context(device)

# torch_xla.distributed.zero_redundancy_optimizer
should waits:processes class ZeroRedundancyOptimizer(params, optimizer_class, optimizer_dtype=None,\
    grad_clipping=True, max_norm=None, pin_layout=True, sharding_groups=None, grad_norm_groups=None,\
    lazy_init=False, bucket_cap_mb_all_gather=0, bucket_cap_mb_reduce_scatter=0, use_grad_acc_hook=False,\
    save_master_weights=False, higher_cc_precision=False, **defaults)

# torch_xla.distributed.xla_dist
rare absent get_args_parser() : start a process on each host with torchrun
rare absent resolve_and_execute(config) : start a process on each host with torchrun

# torch_xla.distributed.fsdp
must waits:processes class XlaFullyShardedDataParallel(module, reshard_after_forward=True,\
    flatten_parameters=False, execute_sharding_on_init=True, optimization_barrier_in_forward=True,\
    optimization_barrier_in_backward=True, sync_on_finalization=False, disable_reshard_on_root=True,\
    compute_dtype=None, buffer_dtype=None, fp32_reduce_scatter=False, sharding_groups=None, sharding_rank=None,\
    sharding_world_size=None, shard_param_on_dim_0=False, pin_layout_in_collective_ops=True,\
    reduce_scatter_bucket_size_mb=0, coalesce_all_gather_ops=False, auto_wrap_policy=None,\
    auto_wrapper_callable=None, param_init_fn=None, **kwargs)
must waits:processes checkpoint_module(module)
should waits:processes consolidate_sharded_state_dicts(state_dict_list, shard_metadata)
must waits:processes consolidate_sharded_model_checkpoints(ckpt_prefix, ckpt_suffix='*.pth', save_path='',\
    save_model=True)

# torch_xla.distributed.fsdp.wrap
must waits:processes always_wrap_policy(*args, **kwargs)
must waits:processes lambda_auto_wrap_policy(module, recurse, unwrapped_params, lambda_fn)
must waits:processes transformer_auto_wrap_policy(module, recurse, unwrapped_params, transformer_layer_cls)
must waits:processes size_based_auto_wrap_policy(module, recurse, unwrapped_params, min_num_params=100000000,\
    force_leaf_modules=None, exclude_wrap_modules=None)
must waits:processes recursive_wrap(module, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params,\
    only_wrap_children=False, **kwargs)

# torch_xla.distributed.fsdp.utils
must waits:processes checkpoint_module(module)
should waits:processes apply_xla_patch_to_nn_linear(module, patched_function=None)
rare absent class XLAPatchedLinear
rare absent class BucketizedReduceScatter(bucket_size_mb, shard_count, groups, pin_layout)

# torch_xla.distributed.fsdp.xla_flatten_params_wrapper
rare absent class XlaFlattenParamsWrapper(module, param_list)
rare absent class FlatParameter(params, requires_grad=True)

# torch_xla.distributed.spmd
must waits:sharding class Mesh(device_ids, mesh_shape, axis_names=None)
should waits:sharding class HybridMesh(*, ici_mesh_shape, dcn_mesh_shape=None, axis_names=None)
must waits:sharding get_1d_mesh(axis_name=None)
must waits:sharding set_global_mesh(mesh)
must waits:sharding get_global_mesh()
must waits:sharding mark_sharding(t, mesh, partition_spec)
must waits:sharding mark_sharding_with_gradients(t, mesh, partition_spec)
must waits:sharding class MarkShardingFunction
must waits:sharding clear_sharding(t)
should waits:sharding enable_manual_sharding(t, partition_spec, *, mesh=None)
should waits:sharding disable_manual_sharding(t, partition_spec, full_shape, *, mesh=None)
should waits:sharding annotate_custom_sharding(t, mesh, partition_spec)
should waits:sharding shard_as(a, b)
should waits:sharding wrap_if_sharded(x)
should waits:sharding apply_backward_optimization_barrier(m)
must waits:sharding class ShardingSpec(mesh, partition_spec, minibatch=False)
should waits:sharding class ShardingType(*values)
must waits:sharding class XLAShardedTensor(elem, mesh_shape=None, partition_spec=None, *args, **kwargs)
should waits:sharding class XLAShard(data, indices, shard_device, replica_id)
must waits:sharding xla_distribute_tensor(tensor, device_mesh, placements=None)
must waits:sharding xla_distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None)
should waits:sharding auto_policy(mod_name, mod, mesh)
should waits:sharding class XLAPatchedLinear
should waits:sharding xla_patched_nn_linear_forward(m, input)

# torch_xla.distributed.spmd.xla_sharding
must waits:sharding class Mesh(device_ids, mesh_shape, axis_names=None)
must waits:sharding mark_sharding(t, mesh, partition_spec)
must waits:sharding class ShardingSpec(mesh, partition_spec, minibatch=False)
should waits:sharding class EinsumLinear
should waits:sharding apply_xla_patch_to_nn_linear(module)

# torch_xla.distributed.spmd.xla_sharded_tensor
must waits:sharding class XLAShardedTensor(elem, mesh_shape=None, partition_spec=None, *args, **kwargs)
should waits:sharding class XLAShard(data, indices, shard_device, replica_id)

# torch_xla.distributed.spmd.debugging
should waits:sharding visualize_sharding(sharding, use_color=True, scale=1.0, min_width=9, max_width=80)
should waits:sharding visualize_tensor_sharding(t, **kwargs)
should waits:sharding construct_v1_sharding_str(t)
"""
