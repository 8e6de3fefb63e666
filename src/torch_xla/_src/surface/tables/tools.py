"""Rows of torch_xla.amp, backends, debug, utils, stablehlo, _internal and test: see Note [Public surface]."""

TABLE = """
# torch_xla.amp
must works class autocast(device, enabled=True, dtype=None, cache_enabled=True)
should works class GradScaler

# torch_xla.amp.syncfree
must works class SGD
must works class Adam
must works class AdamW

# torch_xla.backends
must works set_mat_mul_precision(precision)
must works get_mat_mul_precision()

# torch_xla.debug.metrics
must works counter_names()
must works counter_value(name)
must works metric_names()
must works metric_data(name)
must works metrics_report()
must works short_metrics_report(counter_names=None, metric_names=None)
must works executed_fallback_ops()
must works clear_all()
must works clear_counters()
must works clear_metrics()

# torch_xla.debug.profiler
must works start_server(port, only_on_master=True)
must works trace(service_addr, logdir, duration_ms=1000, num_tracing_attempts=3, host_tracer_level=2,\
    device_tracer_level=1, delay_ms=0, timeout_s=120, interval_s=5)
must works trace_detached(*args, **kwargs)
must works class Trace(name, **kwargs)
must works class StepTrace(name, **kwargs)
must works trace_me(scope)
must works start_trace(log_dir)
must works stop_trace()
should works set_tracer_marked_step(value)
should works get_tracer_marked_step()

# torch_xla.debug.metrics_compare_utils
should works parse_metrics_report(report, dehumanize=True)
should works get_data_points_from_metrics_reports(metrics_reports)
should works compare_metrics(data_points, metrics_report, config=None)

# torch_xla.debug.metrics_saver
should works save_metrics(metrics_file=None)

# torch_xla.debug.graph_saver
rare works save_tensors_graph(save_dir, name, tensors)

# torch_xla.debug.model_comparator
rare absent configure(save_dir) : compare with torch.testing.assert_close
rare absent save(name, tensor, step=None) : compare with torch.testing.assert_close
rare absent compare(save_dir1, save_dir2, rtol=1e-05, atol=1e-08,\
    max_diffs=25) : compare with torch.testing.assert_close

# torch_xla.debug.frame_parser_util
rare absent process_frames(fname)

# torch_xla.utils.utils
must works class SampleGenerator(data, sample_count)
must works getenv_as(name, type, defval=None)
should works class FnDataGenerator(func, batch_size, gen_tensor, dims=None, count=1)
should works class DataWrapper()
should works check_env_flag(name, default='')
should works class LazyProperty(gen_fn)
should works class TmpFolder()
should works class Cleaner(func)
should works for_each_instance(value, select_fn, fn)
should works for_each_instance_rewrite(value, select_fn, fn)
should works parallel_work(num_workers, fn, *args)
should works timed(fn, msg='', printfn=eprint)
should works class TimedScope(msg='', printfn=eprint)
should works get_free_tcp_ports(n=1)
should works eprint(*args, **kwargs)
should works as_list(t)
should works shape(inputs)
rare works flatten_nested_tuple(inputs)
rare works null_print(*args, **kwargs)
rare works list_copy_append(ilist, item)
rare works get_print_fn(debug=None)

# torch_xla.utils.serialization
must works save(data, path, master_only=True, global_master=False)
must works load(path)

# torch_xla.utils.checkpoint
must works checkpoint(function, *args, use_reentrant=True, **kwargs)
should works class CheckpointFunction

# torch_xla.utils.checkpoint_tagger
rare absent class CheckpointTagger

# torch_xla.utils.dlpack
should works to_dlpack(xla_tensor)
should works from_dlpack(ext_tensor)

# torch_xla.utils.buffer_donor_context
rare works alias_with_buffer_donor_config(should_alias=True)

# torch_xla.utils.closures
rare absent class AsyncClosureHandler(max_queue_size=100) : use xm.add_step_closure

# torch_xla.utils.keyd_queue
rare absent class Queue(maxsize=1024) : use queue.Queue
rare absent class KeydQueue(maxsize=1024) : use queue.Queue

# torch_xla.utils.gcsfs
rare absent open(path, mode='r') : use fsspec

# torch_xla.utils.cached_dataset
rare absent class CachedDataset(data_set, path) : cache samples with torch.save

# torch_xla.utils.tf_record_reader
rare absent class TfRecordReader(path, compression='', buffer_size=16777216,\
    transforms=None) : read records with the tfrecord package

# torch_xla.stablehlo
should waits:export exported_program_to_stablehlo(exported_model, options=None)
should waits:export class StableHLOGraphModule(bundle)
should waits:export save_as_stablehlo(exported_model, stablehlo_dir, options=None)
should waits:export save_torch_model_as_stablehlo(torchmodel, args, path, options=None)
should waits:export class StableHLOExportOptions(include_human_readable_text=True, override_tracing_arguments=None,\
    override_tracing_kwargs=None, save_weights=True, inline_all_constant=True, export_weights=True,\
    custom_ops_allowed_in_graph=set(), export_node_metadata=False)
should waits:export class StableHLOFunctionMeta(**kwargs)
should waits:export class VariableSignature(shape, dtype, dynamic_dims=[])
should waits:export class VariableType(*values)
should waits:export class InputLocation(type_, position=-1, name='')
should waits:export class StableHLOModelBundle(state_dict, additional_constants, stablehlo_funcs)
should waits:export class StableHLOFunc(meta, bytecode, text)

# torch_xla.tf_saved_model_integration
rare absent save_torch_module_as_tf_saved_model(torch_model, args, saved_model_dir, serving_signature_key='',\
    function_alias='') : export with torch_xla.stablehlo
rare absent save_stablehlo_graph_as_tf(stablehlo_program, path, serving_signature_key='',\
    function_alias='') : export with torch_xla.stablehlo

# torch_xla._internal.tpu
must works num_available_devices()
must works get_tpu_env()
must works version()
should works num_available_chips()
rare works get_tpu_type()
rare works num_logical_cores_per_chip()
rare works task_id()
rare works worker_id()
rare absent num_expected_global_devices() : use torch_xla.runtime.global_runtime_device_count()
rare absent num_local_processes() : use torch_xla.runtime.local_process_count()
rare absent get_worker_ips() : libtpu and JAX find the other workers
rare absent num_tpu_workers() : use torch_xla.runtime.process_count()
rare absent process_bounds_size()
rare absent configure_topology(local_rank, local_world_size, base_port=8476) : libtpu and JAX find the topology
rare absent configure_one_chip_topology() : libtpu and JAX find the topology
rare absent discover_master_worker_ip(use_localhost=True) : libtpu and JAX find the other workers
rare absent class TpuPlugin

# torch_xla._internal.pjrt
should waits:processes run_multiprocess(fn, *args, start_method='spawn', **kwargs)
should works spawn(fn, nprocs=None, start_method='spawn', args=())
rare absent spawn_threads(fn, args=()) : use torch_xla.launch
rare absent initialize_multiprocess(local_rank, local_world_size) : use torch_xla.launch
rare absent initialize_singleprocess()

# torch_xla._internal.jax_workarounds
must works jax_import_guard()
should works jax_env_context()
should works requires_jax(func)
should works maybe_get_jax(log=True)
rare works maybe_get_torchax()

# torch_xla._internal.rendezvous
should waits:processes pjrt_rendezvous_handler(url, timeout=..., **kwargs)

# torch_xla.test.test_utils
should works get_summary_writer(logdir)
should works write_to_summary(summary_writer, global_step=None, dict_to_write={}, write_xla_metrics=False)
should works close_summary_writer(summary_writer)
should works print_training_update(device, step, loss, rate, global_rate, epoch=None, summary_writer=None)
should works print_test_update(device, accuracy, epoch=None, step=None)
should works now(format='%H:%M:%S')
rare absent mp_test(func)
"""
