from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

app = FastAPI()
app.add_middleware(GZipMiddleware)


@app.middleware("http")
async def add_process_time_header(request, call_next):
    response = await call_next(request)
    response.headers["x-hello"] = "world"
    return response


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}
