"""What a server of the demo model imports until it has answered: every library too many is time and memory of each start."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cli_process import call, environment

from corekit.api import WeightSource

NEVER = (
    "transformers",
    "gguf",
    "huggingface_hub",
    "safetensors",
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "scipy",
    "pandas",
    "PIL",
    "matplotlib",
    "openai",
    "httpx",
    "requests",
    "pip",
    "setuptools",
    "pytest",
    "hypothesis",
    "corekit.bench.verbs",
    "corekit.testing",
)
PLUGIN = """
import asyncio
import sys
from corekit.api import LayerSpec, ModelSpec, Prompt, Provider, SamplingParams, hookimpl

class AsksOnce:
    async def serve(self, client):
        while client.health().loading:
            await asyncio.sleep(0.01)
        asked = Prompt(messages=({"role": "user", "content": "What is a cat?"},))
        text = [output.outputs[0].text async for output in client.generate(asked, SamplingParams(max_tokens=3))]
        print("answered:", repr("".join(text)))
        print("imported:", *sys.modules, flush=True)

class StandIn:
    def __init__(self, source):
        config = source.config
        size = config["hidden_size"] // config["num_attention_heads"]
        layer = LayerSpec(num_heads=config["num_attention_heads"], num_kv_heads=config["num_key_value_heads"], key_dim=size, value_dim=size, scale=1.0)
        self.spec = ModelSpec(architecture="StandIn", layers=(layer,), vocab_size=config["vocab_size"], context_length=256, hidden_size=1)

    def load(self, weights, shard):
        pass

    def forward(self, inputs, attend):
        return inputs.token_ids[:, None].float()

    def logits(self, hidden):
        return hidden.new_zeros(len(hidden), self.spec.vocab_size)

@hookimpl
def corekit_register_frontends():
    return (Provider(name="asks-once", api=1, summary="one question", build=lambda context, options: AsksOnce()),)

@hookimpl
def corekit_register_models():
    return (Provider(name="stand-in", api=1, summary="no model", build=lambda context, options: StandIn(context.source), rank=-1),)
"""


def test_a_server_of_the_demo_model_imports_nothing_that_it_does_not_need(tmp_path: Path, demo_source: WeightSource) -> None:
    """By the native decoder; where that was not built, by a stand-in for it, since nothing else on the way may need transformers either."""
    (tmp_path / "asks_once.py").write_text(PLUGIN)
    model = "auto" if all(map(find_spec, ("corekit_llama._llama", "corekit_llama.model"))) else "stand-in"
    file = tmp_path / "corekit.toml"
    file.write_text(
        f'[model]\nsource = "{demo_source.name}"\nuse = "{model}"\n[engine]\nthreads = 1\n[block_allocator]\nnum_blocks = 32\n'
        '[plugins]\nimport = ["corekit_openai_http", "asks_once"]\n[[frontend]]\nuse = "openai-http"\noptions = {port = 0}\n[[frontend]]\nuse = "asks-once"\n'
    )
    done = call("serve", str(file), PYTHONPATH=f"{tmp_path}:{environment().get('PYTHONPATH', '')}")
    assert done.returncode == 0, done.stderr
    (answered,) = (line for line in done.stdout.splitlines() if line.startswith("answered: "))
    assert answered != "answered: ''"
    (imported,) = (line.split() for line in done.stdout.splitlines() if line.startswith("imported: "))
    assert {"torch", "uvicorn", "corekit_openai_http.app", "corekit.builtin.chat_program"} <= set(imported), "the road was taken to its end"
    assert [name for name in NEVER if name in imported] == []
