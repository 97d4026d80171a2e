"""DS-MLR: multinomial logistic regression whose blocks of labels rotate over shards of rows."""
