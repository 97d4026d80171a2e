"""Use the scikit-learn estimator in a pipeline, with cross-validation and ranking measures."""

import numpy as np
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from xcray import PPDSparse, evaluate
from xcray.arrays import pattern_from
from xcray.data.synthetic import SyntheticParams, generate


def main() -> None:
    """Choose lam by cross-validation and evaluate the best model on the last 100 rows."""
    rows, labels = generate(SyntheticParams(rows=400, features=200, labels=40, seed=7))
    X, Y = rows.to_scipy(), labels.to_scipy()
    train, test = np.arange(300), np.arange(300, 400)

    pipeline = make_pipeline(TfidfTransformer(), PPDSparse(C=1.0, n_jobs=2))
    search = GridSearchCV(pipeline, {"ppdsparse__lam": [0.01, 0.1]}, cv=3)
    search.fit(X[train], Y[train])
    print("best parameters:", search.best_params_)

    tfidf, model = search.best_estimator_
    top = model.predict_top_k(tfidf.transform(X[test]), k=5)
    measures = evaluate(top, pattern_from(Y[test]), ks=(1, 5))
    print("held-out rows:", {name: round(value, 2) for name, value in measures.items()})
    gaps = model.records_["gap"] / model.records_["null"]
    print(f"largest relative duality gap: {gaps.max():.4f}")


if __name__ == "__main__":
    main()
