from .loading import *
from .loading import ImageData, ImageSet, load_folder, check_task
