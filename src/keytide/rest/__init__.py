"""Tables that a catalog service keeps, one that speaks the REST protocol of Apache Paimon."""
