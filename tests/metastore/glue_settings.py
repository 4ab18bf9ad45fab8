"""What a client of the Glue of these tests is given."""

SETTINGS = {
    "region": "us-east-1",
    "access_key_id": "tester",
    "secret_access_key": "s3cr3t",
}
