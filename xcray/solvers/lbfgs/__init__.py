"""L-BFGS: multinomial logistic regression with all weights at each worker."""
