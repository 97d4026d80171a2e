"""Text features: tokenizer, vocabulary, vectorizer and the tf-idf pipeline."""
