"""The disaggregated backend of Forebay: sorted files on object storage, read in batches."""
