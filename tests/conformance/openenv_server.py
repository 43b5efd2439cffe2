"""An OpenEnv server for tests: guess a digit in three tries. Runs in `tools/venv environment-openenv`."""

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    message: str


class Said(Observation):
    text: str


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(episode_id="none", step_count=0)
        self._number = None

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._number, self._state = (seed or 0) % 10, State(episode_id=episode_id or "some", step_count=0)
        return Said(text="a digit?", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        right = action.message.strip() == str(self._number)
        return Said(text="yes" if right else "no", done=right or self._state.step_count == 3, reward=1.0 * right)

    @property
    def state(self):
        return self._state


app = create_fastapi_app(Guessing, Guess, Said, max_concurrent_envs=int(sys.argv[2]))
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
