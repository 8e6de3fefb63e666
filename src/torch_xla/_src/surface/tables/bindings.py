"""Rows of torch_xla._XLAC: see Note [Public surface]. Its functions have no signatures of their own, so none are compared."""

_WORKS = {
    "must": "_xla_get_tensor_id _get_xla_tensors_text _get_xla_tensors_hlo _get_xla_tensors_dot _get_xla_tensor_debug_info "
    "_get_xla_sharding_spec",
    "should": """
_get_xla_sharding_specs _get_xla_sharding_type _xla_clear_sharding _xla_step_marker _xla_sync_multi
_xla_sync_live_tensors _xla_wait_device_ops _xla_get_default_device _xla_set_default_device _xla_get_devices
_xla_real_devices _xla_num_devices _xla_get_all_devices _xla_num_runtime_devices _xla_get_all_runtime_devices
_xla_runtime_is_initialized _init_computation_client _xla_device_kind _xla_get_device_hw_type _xla_get_process_index
_xla_get_num_processes _xla_set_rng_seed _xla_get_rng_seed _xla_counter_names _xla_counter_value _xla_metric_names
_xla_metric_data _xla_increment_counter _xla_metrics_report _short_xla_metrics_report _clear_xla_counters
_clear_xla_metrics _get_executed_fallback_ops _xla_memory_info _get_git_revs _set_use_eager_mode _get_use_eager_mode
_set_ir_debug _get_ir_debug _get_stablehlo _xla_set_mat_mul_precision _xla_get_mat_mul_precision
_check_tensor_need_materialization _get_graph_hash _xla_set_use_full_mat_mul_precision
_set_buffer_donation _get_buffer_donation _xla_set_enable_alias_with_buffer_donor_config
""",
}
_WAITS = {
    "sharding": """
_get_xla_op_sharding _xla_mark_sharding _xla_annotate_custom_sharding OpSharding XlaShardingSpec _get_local_shards
_get_local_shard_replica_and_indices _load_local_shards _global_tensor_from_cpu_shards _spmd_full_to_shard_shape
_spmd_shard_to_full_shape _xla_spmd_all_reduce _xla_spmd_reduce_scatter _mark_manual_sharding
""",
    "export": "_run_stablehlo",
    "kernels": "_xla_custom_call _xla_tpu_custom_call",
}
_ABSENT = """
_xla_warm_up_cache _get_xla_tensors_hlo_proto _xla_tensors_report _set_allow_execution _get_allow_execution
_set_current_graph_name _set_xla_handle_special_scalars _set_xla_all_numbers_special_scalars
_set_xla_enable_device_data_cache _set_xla_custom_op_name_prefix _xla_register_custom_call_target
_xla_user_computation _xla_dot_general
_xla_cast_int4 _xla_quantize_tensor _xla_dequantize_tensor _xla_mark_dynamic _xla_dynamic_expand _xla_mark_tensor
_get_tensors_xla_device_data_node _run_cached_graph _clear_pending_irs _get_seed_info_id _get_base_seed_as_tensor
_unique_id_for_ir_and_data _get_tensors_handle _is_placecholder _replace_xla_tensor _unsafe_buffer_pointer
_on_ready_callback _to_dlpack _from_dlpack _xla_get_cpu_tensors _xla_tensors_from_aten _xla_get_tensor_view_alias_id
lowering profiler _register_pjrt_plugin _prepare_to_exit
"""

TABLE = "\n".join(
    ["# torch_xla._XLAC"]
    + [f"{mark} works {name}" for mark, names in _WORKS.items() for name in names.split()]
    + [f"should waits:{issue} {name}(*args, **kwargs)" for issue, names in _WAITS.items() for name in names.split()]
    + [f"rare absent {name} : it is internal to the C++ version" for name in _ABSENT.split()]
)
