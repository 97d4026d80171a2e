"""LC: multinomial logistic regression, with classes that are solved alone in each round."""
