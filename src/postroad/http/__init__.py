"""HTTP: the API that `postroad up` serves. `app.create_app(context)` builds it, `app.serve` listens."""
