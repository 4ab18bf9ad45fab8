def validate_merge_options(fields, primary_keys, partition_keys, options):
    pass
