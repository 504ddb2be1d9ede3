"""Training: recipes, schedules, a loop that can be killed and resumed."""

from polycert.training.loop import Moment, Run, prepare, train
from polycert.training.recipe import Recipe, make_recipe
from polycert.training.recipe_files import library, read_recipe

__all__ = ["Moment", "Recipe", "Run", "library", "make_recipe", "prepare", "read_recipe", "train"]
