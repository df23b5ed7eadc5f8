"""English: the messages of layertap.store."""

MESSAGES = {
    "store.bytes_given": "{site}: {count} bytes given; the record has kept={kept!r}, {kept_dtype} {kept_shape}",
    "store.bytes_shape": "{site}: {count} bytes do not make a {name} tensor of shape {shape} ({value})",
    "store.cannot_read": "cannot be read ({strerror})",
    "store.cannot_read_why": "cannot be read ({error})",
    "store.choose_record": "{site}: {count} records; choose one with .at(...) or [i]: {value}",
    "store.closed": "the run is closed; a record of {site} came after close()",
    "store.closed_many": "the run is closed; {count} records came after close()",
    "store.column": "{name}: column {name2!r}",
    "store.column_empty": "{name}: column {name2!r} has empty values",
    "store.column_missing": "{name}: column {name2!r} is missing",
    "store.column_type": "{name}: column {name2!r} is {found}, expected {value}",
    "store.complete": "complete",
    "store.cut": "{there} bytes, expected at least {end}; it was cut",
    "store.cut_reading": "ends {count} bytes before byte {end}; it was cut while it was read",
    "store.data_offsets": "tensor {key!r} of {dtype} {shape} has data_offsets [{begin}, {end}]",
    "store.duplicate_key": "duplicate key",
    "store.durability": "durability={durability!r}: expected {value}",
    "store.exists": (
        "{folder} already contains a run; exists='append' (--append) continues it, exists='replace' (--replace) "
        "removes it, or give another folder"
    ),
    "store.exists_choice": "exists={exists!r}: expected 'error', 'append' or 'replace'",
    "store.file_name": "{folder}: a record names the tensor file {name!r}, which is not a plain file name",
    "store.footer_end": "the footer ends too early",
    "store.footer_list": "a list that is longer than the footer",
    "store.footer_number": "a number that is too long",
    "store.footer_text": "a string that is longer than the footer",
    "store.footer_type": "a field of the unknown type {kind}",
    "store.header_entry": "tensor {key!r} has a malformed header entry",
    "store.header_json": "the header is not JSON (not a safetensors file)",
    "store.header_json_why": "the header is not JSON ({error}; not a safetensors file)",
    "store.header_max": "a header of {length} bytes; safetensors allows {max_header}",
    "store.header_size": "a header of {length} bytes in a file of {size} (truncated, or not safetensors)",
    "store.histogram_shape": (
        "{site}: the histogram of step {step} is {kept_dtype} {kept_shape}, expected int64 [{bins}]"
    ),
    "store.in_memory": "run in memory",
    "store.in_use": "{folder} is in use; this one writes to {own}",
    "store.layout_count": (
        "this layout of {model} has {own} outputs and {count} taps, but the artefact returned {count2} values: it "
        "was made from another bake, or compiled on inputs of another form"
    ),
    "store.layout_damaged": "{origin} is a damaged layout: {error}; write it again with tapped.layout.save(…)",
    "store.layout_foreign": "{origin} is not a layout of layertap",
    "store.layout_json": "{origin} is not valid JSON: {error}; write it again with tapped.layout.save(…)",
    "store.layout_version": "{origin} is a layout of version {version}; this layertap reads up to {version2}",
    "store.link": "{path}: a link to {real}, which is outside of the run's folder; it is not followed",
    "store.lost": "{path}: {what}; {lost} record(s) lost, what was committed before is untouched",
    "store.memory_shard": "memory shard {number}",
    "store.missing": "does not exist",
    "store.nearest": "; nearest: {near}",
    "store.nested": "nested too deeply",
    "store.no_checksum": "{site}: kept is {kept!r}, which has no checksum",
    "store.no_column": "no column {name!r}{name2}; all: {names}",
    "store.no_dtype": "{site}: torch {version} has no dtype {name}",
    "store.no_footer": "no Parquet footer",
    "store.no_histogram": (
        "{site}: no histogram was kept at step {step} (kept is {kept!r}); record again with keep='histogram', or "
        "with keep={{{name}: 'histogram'}}{instead}"
    ),
    "store.no_kept_dtype": "no kept_dtype",
    "store.no_layout": (
        "{path} has no layout, inside or beside it ({name}); save it with tapped.layout.save({name2!r})"
    ),
    "store.no_record": "{site}: no record at {asked}; there is {value}",
    "store.no_run_json": "has no run.json",
    "store.no_site": "{name}: no site {site!r}{value}. It has {count} sites",
    "store.no_steps": "no steps",
    "store.no_tensor": "{name}: no tensor {key!r}, which is that of {site} at step {step}",
    "store.not_archive": "not an archive",
    "store.not_compacted": "layertap: the small shards of %s were not merged: %s",
    "store.not_contiguous": "{site}: the bytes are not contiguous",
    "store.not_folder": "is not a folder",
    "store.not_layout": "not a layout",
    "store.not_ours": "{name}: no layertap format in its metadata; layertap did not write this file",
    "store.not_parquet": "{name}: damaged, or not parquet ({value})",
    "store.not_regular": "{path}: not a regular file",
    "store.not_run": "{folder} {there}; a run is the folder that was given to layertap.record",
    "store.not_synced": "{parquet}: it is not certain that it is on the disk: {error}",
    "store.numpy_dtype": "numpy cannot read {dtype}; .tensor() gives it as a torch tensor",
    "store.one_step": "step {steps}",
    "store.or_histogram": ", or take numpy.histogram of run[{name}].numpy()",
    "store.part_left": "{name} contains a part of a tensor that could not be removed",
    "store.partial": "partial ({count} problem(s), see .problems)",
    "store.path_closed": "{path}: the run is closed; a record of {site} came after close()",
    "store.path_closed_many": "{path}: the run is closed; {count} records came after close()",
    "store.path_missing": "{path}: missing",
    "store.path_unreadable": "{path}: cannot be read ({strerror})",
    "store.path_unwritable": "{path}: no run can be written here ({strerror})",
    "store.readable": "{error}; the records are readable",
    "store.receipt_damaged": "{name}: the receipt in run.json is damaged",
    "store.record_of": "a record of {name}",
    "store.record_of_site": "a record of {site}",
    "store.records_gone": "{name}: {wrote} records were written, {count} are here: files of records/ are missing",
    "store.records_repr": "<{site}: {count} record(s); {value}>",
    "store.replaces_damaged": "{name}: the list of shards that it replaces is damaged",
    "store.rows_expected": "{num_rows} rows, expected {expected}",
    "store.rows_parts": "{name}: {num_rows} rows, its parts have {groups}",
    "store.run_artefact": "{name}: 'artefact' is not a name",
    "store.run_aside": "{error}; it was renamed to {name}, and its data of earlier sessions is lost",
    "store.run_file_unwritable": "{path}: cannot be written ({strerror})",
    "store.run_format": "{name}: expected a JSON object with a whole number as 'format'",
    "store.run_json_missing": "{folder}/run.json: missing; the records are readable, what made them is not known",
    "store.run_names": "{name}: {key!r} is not a list of names",
    "store.run_newer": (
        "{name}: written in format {data}; this layertap reads up to {format}. Upgrade it: pip install -U layertap"
    ),
    "store.run_not_json": "{name}: not JSON; expected the description of a run ({error})",
    "store.run_repr": "<Run {name}: {count} records>",
    "store.run_sessions": "{name}: 'sessions' is not a list of objects",
    "store.run_text": "{name}: {count} sites, {count2} records, {span}, {state}",
    "store.session_error": "{name} stopped with an error: {receipt}; later records may be missing",
    "store.session_lost": "{name}: {receipt} record(s) could not be written",
    "store.session_of_rank": "session {session} of rank {session2}",
    "store.session_open": (
        "{name} was never closed: it is still recording, or its process died; its last records may be missing"
    ),
    "store.shard_newer": (
        "{name}: written in format {version}; this layertap reads up to {format}. Upgrade it: pip install -U layertap"
    ),
    "store.shard_unwritten": "shard {stem} could not be written: {error}",
    "store.shards_gone": "{count} shard(s) that were written were removed by another program",
    "store.short_read": "{file}: read {count} bytes of {size} from byte {begin} on",
    "store.sketch_bytes": "a sketch of {value} bytes",
    "store.stats_only": (
        "{site}: only statistics were kept at step {step}; record again with keep='tensor', or with keep="
        "{{{site2!r}: 'tensor'}}"
    ),
    "store.steps": "steps {steps}-{steps2}",
    "store.tensor_begins": "tensor {key!r} begins at {value}, expected {end}",
    "store.tensor_damaged": (
        "{name}/tensors/{file}: the tensor of {site} at step {step} is damaged: its bytes have fingerprint "
        "{found:016x}, recorded was {expected:016x}. Restore the file, or open the run with Run(path, verify=False)"
        " to read it as it is"
    ),
    "store.tensor_differs": (
        "{name}: tensor {key!r} is {dtype} {shape}, expected {kept_dtype} {kept_shape} by the record of {site} at "
        "step {step}"
    ),
    "store.tensor_of": "the tensor of {value}",
    "store.tensor_of_site": "the tensor of {site}",
    "store.tensors_empty": "{path}/tensors/{name}: empty; the tensors of {rows} record(s) are lost",
    "store.tensors_end": "tensors end at byte {value} of {size}",
    "store.tensors_lost": "{error}; the tensors of {rows} record(s) are lost",
    "store.this_text": "this text",
    "store.unreadable": "{name}: cannot be read ({strerror})",
    "store.unwritable": "{folder}: no run can be written here ({strerror})",
    "store.unwritten": "{what} could not be written: {error}",
    "store.which_is_bytes": ", which is {expected} bytes",
}
